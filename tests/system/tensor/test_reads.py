"""Values that are read leave with the operations before them, and wait for no other rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import ProcMesh
from monarch_hpc.core.errors import RemoteOpError
from monarch_hpc.tensor import fetch_shard, inspect, remote, sync
from monarch_hpc.testing import wait_until

_GET_S = 60.0


def _stay(rank: torch.Tensor, path: str) -> torch.Tensor:
    if int(rank) == 1:
        wait_until("the test", Path(path).exists)
    return rank


stay = remote(_stay, propagate=lambda rank, path: rank)


def test_a_value_waits_for_its_own_rank_alone(procs: ProcMesh, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with procs.activate():
        x: Any = torch.arange(3.0) + procs.rank("dp")
        held: Any = stay(procs.rank("dp"), str(go))
        engine = x._h.view.engine
        frames = engine._frames
        for number in range(3):
            before = frames[-1]  # earlier ones may go meanwhile
            assert inspect(x + number, dp=0).tolist() == [number, number + 1.0, number + 2.0]
            assert frames[-1] is not before  # the operation's, which rank 1 has not executed
        behind = fetch_shard(x + 7, dp=1)
        assert not behind.done()
        go.touch()
        assert behind.get(_GET_S).tolist() == [8.0, 9.0, 10.0]
        assert int(inspect(held, dp=1)) == 1
        sync(procs)
    assert not frames


def test_reads_of_several_values_and_of_none_that_are_new(procs: ProcMesh) -> None:
    with procs.activate():
        x: Any = torch.ones(2)
        big = torch.zeros(3000) + 1
        first = fetch_shard({"a": x + 1, "b": [big, 5]}, dp=1)
        second = fetch_shard(x, dp=0)  # nothing is to be sent before
        found = first.get(_GET_S)
        assert found["a"].tolist() == [2.0, 2.0] and float(found["b"][0].sum()) == 3000.0 and found["b"][1] == 5
        assert type(found["a"]) is torch.Tensor and second.get(_GET_S).tolist() == [1.0, 1.0]
        found["a"] += 1  # own memory
        assert inspect(x).tolist() == [1.0, 1.0]


def test_an_operation_that_fails_in_the_frame_of_its_read(procs: ProcMesh) -> None:
    with procs.activate():
        x: Any = torch.arange(3)
        fine, bad = x + 1, x[torch.tensor([7])]
        with pytest.raises(IndexError, match="out of bounds") as caught:
            inspect(bad)
        assert isinstance(caught.value, RemoteOpError) and caught.value.line
        assert inspect(fine).tolist() == [1, 2, 3]


def test_a_read_of_a_part_of_the_ranks_leaves_what_others_do(procs: ProcMesh) -> None:
    with procs.activate():
        x: Any = torch.ones(2)
        part: Any = x.slice_mesh(dp=1)
        y = part * 4
        z = x * 3
        assert inspect(y).tolist() == [4.0, 4.0] and inspect(z, dp=1).tolist() == [3.0, 3.0]
