"""Tensors with a value of its own on each rank, on smaller meshes after a death, and on larger ones again."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.tensor import fetch_shard, inspect
from monarch_hpc.tensor.healing.ranks import Ranks
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle
from tests.system.tensor.deaths import check_lost, kill

_GET_S = 60.0


def test_a_smaller_mesh_goes_on_with_the_values_of_its_ranks(three: ProcMesh) -> None:
    with three.activate():
        place: Any = three.rank("dp")
        x = torch.arange(2.0) + place
        last = x.slice_mesh(dp=2)
        first = x.slice_mesh(dp=slice(0, 2))
        assert inspect(place.reduce("dp")) == 3
    kill(three, 2, place)
    smaller = three.heal("shrink").mesh
    with smaller.activate():
        assert [inspect(x, dp=rank).tolist() for rank in range(2)] == [[0.0, 1.0], [1.0, 2.0]]
        assert inspect(x.reduce("dp"), dp=1).tolist() == [1.0, 3.0]
        assert inspect((first + 1).reduce("dp")).tolist() == [3.0, 5.0]
        assert inspect((x + torch.ones(2)).reduce("dp")).tolist() == [3.0, 5.0]
        with pytest.raises(ValueError, match=r"left out ranks \[2\]"):
            last + 1
        with pytest.raises(ValueError, match=r"left out ranks \[2\]"):
            inspect(last)
        assert inspect(x, dp=1).tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match=r"left out ranks \[2\]"):
        three.activate()


def _shrunk(procs: ProcMesh, rank: int, value: Any) -> ProcMesh:
    """Kill a rank, and go on without it."""
    kill(procs, rank, value)
    smaller = procs.heal("shrink").mesh
    with smaller.activate():
        pass
    return smaller


def test_a_rank_that_was_left_out_comes_back_without_values(three: ProcMesh) -> None:
    with three.activate():
        place: Any = three.rank("dp")
        x: Any = torch.arange(2.0) + place
        last = x.slice_mesh(dp=2)
        first = x.slice_mesh(dp=slice(0, 2))
        assert inspect(place.reduce("dp")) == 3
    smaller = _shrunk(three, 2, place)
    with smaller.activate():
        x.add_(10)
        between = torch.ones(2)
        dropped = x + between
    with pytest.raises(ValueError, match=r"left out ranks \[2\]"):
        three.activate()  # it was not started again
    assert three.heal("respawn").respawned == (2,)
    del dropped
    with three.activate():
        for rank in range(2):
            assert inspect(x, dp=rank).tolist() == [10.0 + rank, 11.0 + rank]
            assert inspect(between, dp=rank).tolist() == [1.0, 1.0]
        for tensor in (x, between, x + between, last):
            with pytest.raises(DeviceMeshError) as caught:
                inspect(tensor, {} if tensor is last else {"dp": 2})
            check_lost(caught, 2, "rank 2")
        for rank in range(3):
            with pytest.raises(DeviceMeshError) as caught:
                fetch_shard(x.reduce("dp"), dp=rank).get(_GET_S)
            check_lost(caught, 2, "torch.float32 of shape (2,)")
        ones: Any = torch.ones(2)
        assert inspect((ones * three.rank("dp")).reduce("dp"), dp=2).tolist() == [3.0, 3.0]
        assert inspect(first.reduce("dp"), dp=1).tolist() == [21.0, 23.0]
        x.data = x.slice_mesh(dp=1).to_mesh(three)
        between.data = torch.full((2,), 2.0)
        assert inspect((x + between).reduce("dp"), dp=2).tolist() == [39.0, 42.0]
        last.data = x.slice_mesh(dp=2)
        assert inspect(last * 2).tolist() == [22.0, 24.0]
    with smaller.activate():
        ones = torch.ones(2)
        assert inspect(ones.reduce("dp"), dp=1).tolist() == [2.0, 2.0]
    again = _shrunk(three, 0, x)  # another one, and so on
    with again.activate():
        assert inspect(x.reduce("dp"), dp=1).tolist() == [22.0, 24.0]
    three.heal("respawn")
    with three.activate():
        x.data = x.slice_mesh(dp=2).to_mesh(three)
        assert inspect(x.reduce("dp"), dp=0).tolist() == [33.0, 36.0]


def test_a_rank_that_lives_and_was_left_out_with_its_row_has_missed_what_was_written(
    hosts: HostMesh, procs: ProcMesh
) -> None:
    grid = hosts.slice(hosts=0).spawn_procs({"dp": 2, "tp": 2}, preload=PRELOADED)
    settle(grid)
    with grid.activate():
        x: Any = torch.zeros(2)
        assert inspect(x.reduce()).tolist() == [0.0, 0.0]
    os.kill(grid.procs[3].pid, signal.SIGKILL)
    with pytest.raises(DeviceMeshError):
        _reduce_until_lost_in_grid(x)
    smaller = grid.heal("shrink").mesh
    kept = {place: smaller.region.base_rank(place) for place in range(2)}
    with smaller.activate():
        x.add_(1)
        assert inspect(x.reduce()).tolist() == [2.0, 2.0]
    grid.heal("respawn")
    with grid.activate():
        for rank in range(4):
            place = {"dp": rank // 2, "tp": rank % 2}
            if rank in kept.values():
                assert inspect(x, place).tolist() == [1.0, 1.0]
                continue
            with pytest.raises(DeviceMeshError) as caught:  # also where it was 0, and lives
                inspect(x, place)
            check_lost(caught, rank, "left out")
        x.data = torch.ones(2)
        assert inspect(x.reduce(), dp=1, tp=1).tolist() == [4.0, 4.0]
    grid.stop().get(_GET_S)


def _reduce_until_lost_in_grid(value: Any) -> None:
    for _ in range(10_000):
        fetch_shard(value.reduce(), dp=0, tp=0).get(_GET_S)


@pytest.mark.parametrize("victim", [2, 0])
def test_a_rank_that_dies_before_all_have_met_leaves_the_others_as_they_are(
    three: ProcMesh, victim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with three.activate():
        x: Any = torch.ones(2)
        x.reduce("dp")
    smaller = _shrunk(three, 2, x)
    three.heal("respawn")
    asked: list[list[int]] = []
    ask_each = Ranks.ask_each

    def killing(self: Ranks, method: str, calls: Any, timeout_s: float | None = None) -> Any:
        if method == "rejoin" and not asked:
            asked.append(sorted(calls))
            os.kill(three.procs[victim].pid, signal.SIGKILL)
        return ask_each(self, method, calls, timeout_s)

    monkeypatch.setattr(Ranks, "ask_each", killing)
    with pytest.raises(DeviceMeshError, match=f"rank {victim} .*died") as died:
        three.activate()
    assert died.value.kind == "died" and asked == [[0, 1, 2]]
    if victim == 2:  # the others have lost nothing, and need no heal
        with smaller.activate():
            assert inspect(x.reduce("dp"), dp=1).tolist() == [2.0, 2.0]
        with pytest.raises(ValueError, match=r"left out ranks \[2\]"):
            three.activate()
    three.heal("respawn")
    with three.activate():
        assert inspect(x, dp=1).tolist() == [1.0, 1.0]
        for rank in {2, victim}:
            with pytest.raises(DeviceMeshError) as caught:
                inspect(x, dp=rank)
            check_lost(caught, rank, "torch.float32 of shape (2,)")
        x.data = x.slice_mesh(dp=1).to_mesh(three)
        assert inspect(x.reduce("dp"), dp=2).tolist() == [3.0, 3.0]
