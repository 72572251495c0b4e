"""Reading stacks without py-spy, of a proc that has no process, and of one whose turn does not come."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from monarch_hpc.agent.children.reaper import Reaper
from monarch_hpc.agent.procs.stack_dumps import StackDumps
from monarch_hpc.testing import ManualClock
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.stacks import ThreadStack

PROC = RunProcess("run", 1, 2, "n1", 77, "ready", "")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def dump(clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[ThreadStack]]:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    # Nothing is launched, so that no reaper is needed, and of an engine only its timers.
    dumps = StackDumps(cast(Engine, clock), cast(Reaper, None), "a110c", 0, lambda: {77})

    def dump(pid: int) -> list[ThreadStack]:
        rows: list[ThreadStack] = []
        dumps.dump(RunProcess("run", 1, 2, "n1", pid, "ready", ""), 5.0, rows.extend, native=False)
        return rows

    return dump


def test_a_host_without_py_spy_says_so(dump: Callable[[int], list[ThreadStack]], tmp_path: Path) -> None:
    (row,) = dump(77)
    assert (row.rank, row.stack, row.thread) == (2, "", 0)
    assert row.problem == (f"py-spy is not installed for {tmp_path}/python on n1: pip install 'monarch-hpc[telemetry]'")


def test_a_program_that_cannot_be_run(dump: Callable[[int], list[ThreadStack]], tmp_path: Path) -> None:
    (tmp_path / "py-spy").write_text("#!/no/such/interpreter\n")
    (tmp_path / "py-spy").chmod(0o700)
    (row,) = dump(77)
    assert row.problem == f"{tmp_path}/py-spy cannot be run: No such file or directory"


def test_a_proc_without_a_process(dump: Callable[[int], list[ThreadStack]]) -> None:
    assert [row.problem for row in dump(0)] == ["it has no process"]
