"""`status --calls` shows the operation of each rank, and the line that issued it, while the ranks execute it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.cli.main import main
from monarch_hpc.config.program import DIRECTORY_VARIABLE, RUN_VARIABLE
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.telemetry.views.picture import Row, draw
from monarch_hpc.tensor import Stream, remote, sync
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.calls import CALLS

_ASK_S = 60.0

_gate = Event()


def hang(x: torch.Tensor) -> torch.Tensor:
    """Wait for `release`, which another stream runs."""
    assert _gate.wait(_ASK_S)
    _gate.clear()
    return x


def release(x: torch.Tensor) -> torch.Tensor:
    """See `hang`."""
    _gate.set()
    return x


def workers() -> list[Row]:
    """The rows of this run's workers that have an operation."""
    report = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), CALLS, _ASK_S)
    assert report is not None
    return [row for row in draw(report.rows).rows if row.operation and row.run == os.environ[RUN_VARIABLE]]


def test_each_ranks_operation_and_line(hosts: HostMesh, procs: ProcMesh, capsys: pytest.CaptureFixture[str]) -> None:
    hangs = remote(f"{__name__}.hang", propagate=lambda x: x * 1)
    releases = remote(f"{__name__}.release", propagate=lambda x: x * 1)
    other = Stream("other")
    with procs.activate():
        with other.activate():
            small: Any = torch.ones(1)
            sync(procs)
        x: Any = torch.ones(2)
        for _ in range(3):
            x = x + 1
        x = hangs(x)  # the line
        x = x * 2
        texts = Path(__file__).read_text().splitlines()
        line = next(number for number, text in enumerate(texts, 1) if text.endswith("# the line"))
        here = f"{__file__}:{line} in test_each_ranks_operation_and_line: x = hangs(x)  # the line"
        expected = f"{__name__}.hang at {here}"
        rows = wait_until("both ranks", workers, accept=lambda rows: len(rows) == 2)
        for rank, row in enumerate(rows):
            assert (row.actor, row.endpoint) == (f"tensor_worker[{rank}]", "run")
            assert row.operation == expected[:200]
        assert main(["status", "--calls", os.environ[DIRECTORY_VARIABLE]]) == 0
        text = capsys.readouterr().out
        assert "OPERATION" in text and f"{__name__}.hang at" in text
        assert main(["status", "--calls", "--json", os.environ[DIRECTORY_VARIABLE]]) == 0
        document = json.loads(capsys.readouterr().out)
        assert sum(".hang at" in row["operation"] for row in document["allocations"][0]["rows"]) == 2
        releases(small)
        sync(procs)
    wait_until("idle ranks", workers, accept=lambda rows: not rows)


def test_the_operation_of_a_step_below_dtensor(procs: ProcMesh) -> None:
    mesh = Mesh(procs=procs, commit=False)
    x = distribute(torch.ones(4), mesh, ["dp"])

    @mesh.capture
    def step(x: Any) -> Any:
        total = (x * 1).sum()
        return total.square()  # the sum over ranks

    for _ in range(6):
        assert step(x).item() == 16.0
    assert set(step.lowering().values()) == {""}
    texts = Path(__file__).read_text().splitlines()
    line = next(number for number, text in enumerate(texts, 1) if text.endswith("# the sum over ranks"))
    stopped = procs.procs[1].pid
    os.kill(stopped, signal.SIGSTOP)
    try:
        result = step(x)
        here = f"{__file__}:{line} in step"
        shown = ("tensor_worker[0]", True)
        wait_until(
            "the first rank in the sum",
            lambda: {(row.actor, here in row.operation) for row in workers()},
            accept=lambda found: shown in found,
        )
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert result.item() == 16.0
