"""Counts of what operations on sharded tensors imply between ranks, and of what the program holds, by its lines."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.tensor.sharded.memory import MemoryRow
from monarch_hpc.testing import wait_until

_GET_S = 60.0


def test_collectives_are_listed_by_line(procs: ProcMesh) -> None:
    mesh = Mesh(procs=procs)
    rows = distribute(torch.ones(4, 8), mesh, ["dp"])
    whole = distribute(torch.ones(8, 2), mesh)
    warm: Any = rows.sum()
    warm.item()
    with mesh.communication() as found:
        for _ in range(3):
            own: Any = rows @ whole
        total: Any = rows.sum()
        total.redistribute()
        gathered: Any = own.redistribute()
    table = {(row.kind, row.num, row.num_bytes) for row in found.rows}
    assert table == {("all_reduce", 1, 4), ("all_gather", 1, 2 * 2 * 4)}
    assert "gathered: Any = own.redistribute()" in next(row.line for row in found.rows if row.kind == "all_gather")
    assert "test_communication.py" in str(found) and str(found).count("\n") == 1

    @mesh.capture
    def step(x: Any) -> Any:
        return x.sum().redistribute()  # the captured line

    for _ in range(3):
        step(rows)
    with mesh.communication() as found:
        for _ in range(2):
            step(rows)
        with pytest.raises(RuntimeError, match="counted already"), mesh.communication():
            pass
    assert [(row.kind, row.num) for row in found.rows] == [("all_reduce", 2)]
    assert "the captured line" in found.rows[0].line
    assert gathered.full_tensor().tolist() == [[8.0, 8.0]] * 4
    with mesh.communication() as found:
        pass
    assert str(found) == "no communication"


def test_tensors_that_the_program_holds_are_listed(procs: ProcMesh) -> None:
    mesh = Mesh(procs=procs)
    before = {(row.shape, row.dtype): row.num for row in mesh.memory()}
    held = [mesh.zeros(31, 7, spec=["dp"]) for _ in range(3)]
    assert MemoryRow((31, 7), torch.float32, 3, 3 * 31 * 7 * 4) in mesh.memory()
    held.pop()
    assert MemoryRow((31, 7), torch.float32, 2, 2 * 31 * 7 * 4) in mesh.memory()
    del held
    assert {(row.shape, row.dtype): row.num for row in mesh.memory()} == before


def test_operators_that_gather_warn_once(procs: ProcMesh, capfd: pytest.CaptureFixture[str]) -> None:
    mesh = Mesh(procs=procs)
    x: Any = distribute(torch.arange(6.0), mesh, ["dp"])
    for _ in range(3):
        assert x.cumprod(0).full_tensor().tolist() == [0.0] * 6
    said: list[str] = []

    def is_said() -> bool:
        said.extend(capfd.readouterr())
        return "cumprod.default runs on whole tensors" in "".join(said)

    wait_until("the warning has arrived", is_said, timeout_s=_GET_S)
    (x * 2).full_tensor()
    said.extend(capfd.readouterr())
    assert "".join(said).count("runs on whole tensors") == 1
