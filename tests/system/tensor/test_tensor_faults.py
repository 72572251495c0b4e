"""Failures of operations on mesh tensors, and deaths of ranks: what is raised, where, and what goes on."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import monarch_hpc
from monarch_hpc import Actor, HostMesh, MeshFailure, ProcMesh, endpoint
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.core.errors import DeviceMeshError, RemoteOpError
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.tensor import fetch_shard, inspect, remote, sync
from monarch_hpc.tensor.sharded.procs import PRELOADED
from monarch_hpc.tensor.worker.sharing.arrival import arrive
from monarch_hpc.testing import wait_until

_GET_S = 60.0


class Refusal(Exception):
    """An exception of the user's."""


def _refuse_on_one(x: torch.Tensor) -> torch.Tensor:
    if int(x) == 1:
        raise Refusal("not here")
    return x


refuse_on_one = remote(_refuse_on_one, propagate=lambda x: x)


def _release(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


released = remote(_release, propagate=lambda x: x)


def test_a_tensor_whose_memory_was_released_is_an_error_and_its_rank_lives(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.ones(1 << 20)
        freed = released(x)
        with pytest.raises(ValueError, match="needs 4194304 bytes of its storage, which was resized to 0") as caught:
            inspect(freed)  # this line
        assert isinstance(caught.value, RemoteOpError) and "inspect(freed)  # this line" in caught.value.line
        assert inspect(x.sum(), dp=1) == 1 << 20


def test_an_error_is_raised_at_the_first_read_with_its_line(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.arange(3)
        bad = x[torch.tensor([7])]  # this line
        spoilt = bad + 1
        fine = x + 1
        for tensor in (spoilt, bad):
            with pytest.raises(IndexError, match="out of bounds") as caught:
                inspect(tensor)
            assert isinstance(caught.value, RemoteOpError)
            assert "bad = x[torch.tensor([7])]  # this line" in str(caught.value)
            assert f"{__file__}:" in caught.value.line
        assert inspect(fine, dp=1).tolist() == [1, 2, 3]


def test_a_failed_write_spoils_what_shares_its_memory(procs: ProcMesh) -> None:
    with procs.activate():
        x = torch.zeros(3)
        view, other = x[:2], torch.ones(2)
        x.index_fill_(0, torch.tensor([9]), 1.0)
        for tensor in (x, view):
            with pytest.raises(IndexError):
                inspect(tensor)
        assert inspect(other).tolist() == [1.0, 1.0]


def test_one_rank_that_fails_leaves_none_waiting_in_a_collective(procs: ProcMesh) -> None:
    with procs.activate():
        refused: Any = refuse_on_one(procs.rank("dp"))
        total = refused.reduce("dp")
        moved = refused.slice_mesh(dp=1).to_mesh(procs)
        for rank in range(2):
            for tensor in (total, moved):
                with pytest.raises(RemoteOpError, match="not here") as caught:
                    fetch_shard(tensor, dp=rank).get(_GET_S)
                assert caught.value.rank == 1 and caught.value.type_name.endswith("Refusal")
        assert int(fetch_shard(refused, dp=0).get(_GET_S)) == 0
        assert int(fetch_shard(procs.rank("dp").reduce("dp"), dp=1).get(_GET_S)) == 1


def test_a_failed_backward_pass_spoils_its_gradients_and_steps(procs: ProcMesh) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise Refusal("no gradient")

    with procs.activate():
        weight, other = torch.ones(2).requires_grad_(), torch.ones(2).requires_grad_()
        optimizer = torch.optim.SGD([weight], lr=0.1)
        apply: Any = Broken.apply
        apply(weight).sum().backward()
        optimizer.step()
        with pytest.raises(RemoteOpError, match="no gradient"):
            inspect(weight)
        assert inspect(other).tolist() == [1.0, 1.0]


def test_errors_that_nobody_reads_come_at_the_end(procs: ProcMesh) -> None:
    with pytest.raises(IndexError, match="issued at"), procs.activate():
        torch.arange(3)[torch.tensor([7])]
    with procs.activate():
        torch.arange(3)[torch.tensor([8])]
        with pytest.raises(IndexError):
            sync(procs)
    effect = remote(_refuse_on_one, propagate=lambda x: None)
    with procs.activate():
        effect(torch.ones((), dtype=torch.int64))
        with pytest.raises(RemoteOpError, match="not here"):
            inspect(torch.zeros(1))


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        (torch.float32, "sum"),
        (torch.float64, "avg"),
        (torch.bfloat16, "avg"),
        (torch.float16, "sum"),
        (torch.int64, "sum"),
    ],
)
def test_a_sum_that_lacks_a_rank_says_so_on_all(procs: ProcMesh, dtype: torch.dtype, reduction: str) -> None:
    with procs.activate():
        place: Any = procs.rank("dp")
        refused: Any = refuse_on_one(place).to(dtype)
        total = refused.reduce("dp", reduction)
        for rank in range(2):
            with pytest.raises(Refusal, match="not here"):
                inspect(total, dp=rank)
        for shape in ((), (0,), (3, 5)):
            own: Any = (torch.full(shape, -1.0) * (place * 2 - 1)).to(dtype)  # 1 and -1: the sum is 0
            assert not inspect(own, dp=1).numel() or inspect(own, dp=1).unique().tolist() == [-1]
            found = inspect(own.reduce("dp", reduction), dp=1)
            assert found.shape == shape and not found.any()
        grown: Any = torch.full((2,), 3, dtype=dtype)
        grown.reduce_("dp", reduction)
        assert inspect(grown).tolist() == [6 if reduction == "sum" else 3] * 2


def test_functions_that_ranks_cannot_load_fail_alone(procs: ProcMesh) -> None:
    with procs.activate():
        with pytest.raises(ModuleNotFoundError):
            remote("no_such_module.function")(torch.ones(1))
        with pytest.raises(TypeError, match="lock"):
            remote(lambda x, lock: x)(torch.ones(1), threading.Lock())
        wrong: Any = remote(lambda x: x[:1], propagate=lambda x: x)(torch.ones(2))
        with pytest.raises(RuntimeError, match="on this rank, not"):
            inspect(wrong.reduce("dp"))
        assert float(inspect(torch.ones(()))) == 1.0


class Adder(Actor):
    @endpoint
    def hold(self, path: str) -> None:
        wait_until("the file", Path(path).exists)

    @endpoint
    def add(self, x: torch.Tensor) -> float:
        return float(x.sum())

    @endpoint
    def take(self, key: int, timeout_s: float) -> str:
        """What happens to a message whose tensor is of the engine *key*."""
        own = monarch_hpc.context().proc
        with pytest.raises(RuntimeError) as caught:
            arrive(key, 1, current_runtime().own.mesh, Region.whole(Extent(("ranks",), (own.num_ranks,))), timeout_s)
        return str(caught.value)

    @endpoint
    def refuse(self, x: torch.Tensor, own: bool) -> torch.Tensor:
        raise Refusal("not here") if own else KeyError("missing")


def test_a_message_does_not_wait_without_end_for_a_worker_that_never_starts(procs: ProcMesh) -> None:
    actors = procs.spawn("taker", Adder)
    late = (
        "the worker of a mesh tensor that came in a message (number 0x2a) did not start in this process within 0.01 s"
    )
    assert list(actors.take.call(0x2A, 0.01).get(_GET_S).values()) == [late] * len(procs)
    actors.stop().get(_GET_S)


def test_an_error_of_an_actor_in_turn_is_of_its_class_and_names_the_line(procs: ProcMesh) -> None:
    actors = procs.spawn("adder", Adder)
    with procs.activate():
        x = torch.arange(4.0)
        for own, cls in ((False, KeyError), (True, Refusal)):
            with pytest.raises(cls) as caught:
                inspect(actors.refuse.rref(x, own))  # this line
            assert isinstance(caught.value, RemoteOpError)
            assert caught.value.op == "adder.refuse"
            assert f"{__file__}:" in caught.value.line and "# this line" in caught.value.line
    actors.stop().get(_GET_S)


def test_a_call_whose_copy_was_dropped_fails_and_later_ones_do_not(procs: ProcMesh, tmp_path: Path) -> None:
    actors, limit = procs.spawn("adder", Adder), load().config.tensor.max_lent
    with procs.activate():
        x = torch.arange(4.0)
        held = actors.hold.call(str(tmp_path / "go"))
        calls = [actors.add.call(x) for _ in range(limit + 2)]
        sync(procs)  # all copies are made, and two of them dropped
        (tmp_path / "go").touch()
        held.get(_GET_S)
        for call in calls[:2]:
            with pytest.raises(RuntimeError, match=rf"was dropped on rank \d: more than {limit} .* tensor\.max_lent"):
                call.get(_GET_S)
        assert [call.get(_GET_S).item(dp=1) for call in calls[2:]] == [6.0] * limit
        assert actors.add.call(x).get(_GET_S).item(dp=0) == 6.0
    actors.stop().get(_GET_S)


def _wait_or_die(x: torch.Tensor) -> torch.Tensor:
    if int(x) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def test_a_death_in_a_collective_is_an_error_at_the_other_ranks(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    procs = hosts.slice(hosts=0).spawn_procs({"dp": 3}, preload=PRELOADED)
    die = remote(_wait_or_die, propagate=lambda x: x)
    activation = procs.activate()
    with activation:
        rank = procs.rank("dp")
        assert inspect(rank.reduce("dp")) == 3  # the connections are there
    dead: Any = die(rank)
    total = dead.reduce("dp")
    for survivor in (2, 0):
        with pytest.raises(DeviceMeshError, match="signal 9") as read:
            fetch_shard(total, dp=survivor).get(_GET_S)
        assert (read.value.kind, read.value.rank) == ("died", 1)
    num_frames = set()
    for _ in range(3):  # each raises one exception, which must not collect the frames of the others
        for use in (lambda: rank + 1, lambda: sync(procs), lambda: inspect(rank)):
            with pytest.raises(DeviceMeshError) as used:
                use()
        num_frames.add(len(used.traceback))
    assert len(num_frames) == 1
    procs.stop().get(_GET_S)
    assert not faults
