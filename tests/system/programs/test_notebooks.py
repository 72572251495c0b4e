"""Notebooks: README's program in a cell, output under the cell that caused it, interrupts, restarts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monarch_hpc.testing import wait_until
from tests.guards.test_docs import blocks
from tests.guards.tree import ROOT

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = pytest.mark.slow  # a kernel takes two seconds to start

_PATIENCE_S = 300.0

START = """\
import asyncio, os
import monarch_hpc
from monarch_hpc import Actor, concurrent_endpoint, endpoint

class Echo(Actor):
    @endpoint
    def say(self, text: str) -> int:
        print(text)
        return os.getpid()

    @concurrent_endpoint
    async def sleep(self) -> None:
        await asyncio.sleep(600)

echo = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2}).spawn("echo", Echo)
print("pids=" + str(echo.say.call("first").get().values()))
"""


def show(tmp_path: Path, *steps: dict[str, Any]) -> list[str]:
    """What the cells of a notebook show."""
    places = {name: str(tmp_path / name) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "XDG_STATE_HOME")}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.system.support.notebook"],
        input=json.dumps(steps),
        env={**os.environ, **places},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    shown: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return shown


def pids_in(shown: str) -> list[int]:
    """The process ids that a cell has printed, in one write: output of procs may come between two."""
    (pids,) = re.findall(r"pids=\[([\d, ]+)\]", shown)
    return [int(pid) for pid in pids.split(",")]


def is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_readmes_program_runs_in_a_cell(tmp_path: Path) -> None:
    program = next(block.text for block in blocks(ROOT / "README.md") if "class Greeter" in block.text)
    (shown,) = show(tmp_path, {"book": [program]})
    assert "hello, you, from" in shown and "about to greet world" in shown
    assert "Warning" not in shown


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the cells of one notebook show, by name; one for all tests, because a kernel takes seconds to start."""
    cells = {
        "start": START,
        **{f"text {number}": f'_ = echo.say.call("text {number}").get()' for number in range(8)},
        "awaited": '_ = await echo.say.call("awaited")',
        "sent": 'echo.say.broadcast("sent"); _ = echo.say.call("then").get()',
        "coroutine": 'async def main():\n    return echo.say.call("here").get()\n_ = await main()',
        "waiting": 'print("waiting", flush=True)\necho.sleep.call().get()',
        "awaiting": 'print("awaiting", flush=True)\nawait echo.sleep.call()',
        "after": 'print("pids=" + str(echo.say.call("after").get(120).values()))',
        "restarted": START,
    }
    steps: list[dict[str, Any]] = [{"run": source} for source in cells.values()]
    steps[list(cells).index("waiting")]["interrupt_at"] = "waiting"
    steps[list(cells).index("awaiting")]["interrupt_at"] = "awaiting"
    steps.insert(-1, {"restart": True})
    return dict(zip(cells, show(tmp_path_factory.mktemp("notebook"), *steps), strict=True))


def test_output_of_procs_is_under_the_cell_that_caused_it(shown: dict[str, str]) -> None:
    for caused in (*(f"text {number}" for number in range(8)), "awaited"):
        lines = shown[caused].splitlines()
        assert {line.partition("] ")[2].removesuffix(" (×1 more)") for line in lines} == {caused}
    assert "sent" in shown["sent"] and "then" in shown["sent"]


def test_a_coroutine_of_the_user_is_warned_of_and_a_cell_is_not(shown: dict[str, str]) -> None:
    assert [name for name, text in shown.items() if "write 'await future' instead" in text] == ["coroutine"]
    assert "here" in shown["coroutine"]


def test_an_interrupt_ends_the_wait_and_not_the_procs(shown: dict[str, str]) -> None:
    assert "KeyboardInterrupt" in shown["waiting"]
    assert "CancelledError" in shown["awaiting"]
    assert pids_in(shown["start"]) == pids_in(shown["after"])


def test_a_restarted_kernel_leaves_no_proc(shown: dict[str, str]) -> None:
    before, after = pids_in(shown["start"]), pids_in(shown["restarted"])
    assert not set(before) & set(after)
    wait_until("the end of the procs", lambda: all(map(is_gone, (*before, *after))))


def test_meshes_answers_and_progress_are_shown_below_their_cell(tmp_path: Path) -> None:
    step = "for point, pid in monarch_hpc.progress(echo.say.stream('again'), 'say'): pass"
    watched = "watch = monarch_hpc.hosts().spawn_procs().watch(0.1); watch.stop(); print('watched')"
    _, mesh, values, progress, watch = show(tmp_path, {"run": START}, *({"run": cell} for cell in (
        "print(echo._repr_html_())", "print(echo.say.call('x').get()._repr_html_())", step + "\nprint('done')", watched
    )))  # fmt: skip
    assert "ActorMesh echo of Echo" in mesh and "<td>" in mesh
    assert "ValueMesh(" in values and "<th>value</th>" in values
    assert "done" in progress
    assert "watched" in watch and "Error" not in watch
