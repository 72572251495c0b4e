"""Tensors with a value of its own on each rank, after ranks have died: what stays, and what is lost and comes back."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import Actor, ProcMesh, endpoint
from monarch_hpc.core.errors import DeviceMeshError, RemoteOpError
from monarch_hpc.tensor import Stream, fetch_shard, inspect, remote
from monarch_hpc.tensor.random import manual_seed
from monarch_hpc.testing import wait_until
from tests.system.tensor.deaths import check_lost, kill, reduce_until_lost

_GET_S = 60.0


def _ones(procs: ProcMesh) -> Any:
    """Ones on all ranks."""
    with procs.activate():
        return torch.ones(2)


class Adder(Actor):
    """Takes tensors."""

    @endpoint
    def add(self, x: torch.Tensor) -> float:
        """Their sum."""
        return float(x.sum())


def test_values_of_other_ranks_stay_and_those_of_the_replaced_one_are_lost_on_it_alone(three: ProcMesh) -> None:
    activation = three.activate()
    adders = three.spawn("adder", Adder)
    with activation:
        place: Any = three.rank("dp")
        x = torch.arange(3.0) + place
        view = x[1:]
        part = x.slice_mesh(dp=slice(0, 2))
        assert inspect(place.reduce("dp")) == 3
    kill(three, 1, place)
    with pytest.raises(DeviceMeshError, match="stopped: rank 1"):
        place + 1  # its proc is dead
    assert three.heal("respawn").respawned == (1,)
    x.add_(1)
    for rank in (0, 2):
        assert inspect(x, dp=rank).tolist() == [1.0 + rank, 2.0 + rank, 3.0 + rank]
        assert inspect(view, dp=rank).tolist() == [2.0 + rank, 3.0 + rank]
    assert inspect(part, dp=0).tolist() == [1.0, 2.0, 3.0]
    for tensor in (x, x * 2, part):
        with pytest.raises(DeviceMeshError) as caught:
            inspect(tensor, dp=1)
        check_lost(caught, 1, "torch.float32 of shape (3,)")
    for rank in range(3):  # none goes on with a sum that lacks a part, and none waits
        for total in (x.reduce("dp"), x.reduce("dp", "stack"), x.slice_mesh(dp=1).to_mesh(three)):
            with pytest.raises(DeviceMeshError) as caught:
                fetch_shard(total, dp=rank).get(_GET_S)
            check_lost(caught, 1, "torch.float32 of shape (3,)")
    assert adders.slice(dp=2).add.call_one(part.slice_mesh(dp=0).to_mesh(three)).get(_GET_S) == 6.0
    with pytest.raises(RuntimeError, match="has no value on rank 1: it died with its process"):
        adders.add.call(x).get(_GET_S)
    with three.activate():
        weight = torch.ones(3).requires_grad_()
    (weight * x).sum().backward()
    gradient: Any = weight.grad
    assert inspect(gradient, dp=2).tolist() == [3.0, 4.0, 5.0]
    with pytest.raises(DeviceMeshError) as caught:
        inspect(gradient, dp=1)
    check_lost(caught, 1, "torch.float32 of shape (3,)")
    with three.activate():
        place = three.rank("dp")
        assert inspect((torch.ones(2) * place).reduce("dp"), dp=1).tolist() == [3.0, 3.0]


def test_a_training_goes_on_once_the_replaced_rank_has_the_state_of_another_one(three: ProcMesh) -> None:
    with three.activate():
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        batch = torch.arange(4.0).reshape(2, 2) + three.rank("dp")

        def state() -> list[Any]:
            moments = [value for one in optimizer.state.values() for value in one.values()]
            return [*model.parameters(), *moments]

        def take_over(rank: int) -> None:
            for tensor in state():
                tensor.data = tensor.detach().slice_mesh(dp=rank).to_mesh(three)

        def step() -> Any:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            for parameter in model.parameters():
                gradient: Any = parameter.grad
                gradient.reduce_("dp", "avg")
            optimizer.step()
            return loss

        take_over(0)
        step()
        kept = [value.tolist() for value in inspect([one.detach() for one in state()])]
    kill(three, 0, batch)
    three.heal("respawn")
    with three.activate():
        take_over(2)
        with pytest.raises(DeviceMeshError) as caught:
            inspect(step(), dp=0)  # its batch is lost
        check_lost(caught, 0, "torch.float32 of shape (2, 2)")
        for rank in range(3):  # the gradients are sums with it
            with pytest.raises(DeviceMeshError):
                inspect(model.weight.detach(), dp=rank)
        for tensor, value in zip(state(), kept, strict=True):
            tensor.data = torch.tensor(value)
        batch.data = torch.arange(4.0).reshape(2, 2) + three.rank("dp")
        loss = step()
        again = [float(inspect(loss, dp=rank)) for rank in range(3)]
        weights = [inspect(model.weight.detach(), dp=rank) for rank in range(3)]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[0], weights[2])
    undisturbed = torch.nn.Linear(2, 1)
    with torch.no_grad():
        undisturbed.weight.copy_(torch.tensor(kept[0]))
        undisturbed.bias.copy_(torch.tensor(kept[1]))
    for rank, found in enumerate(again):
        expected = undisturbed(torch.arange(4.0).reshape(2, 2) + rank).square().mean()
        assert found == pytest.approx(expected.item())


def _die_on_one(x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    if int(place) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return x + 1


def _count_until_lost(count: Any, counts: list[int]) -> None:
    """Add ones; the program reads nothing, and learns of a death in between."""
    for _ in range(100_000):
        count.add_(1)
        counts.append(1)


die_on_one = remote(_die_on_one, propagate=lambda x, place: x)


def test_what_was_issued_before_a_death_is_executed_and_a_collective_with_the_dead_rank_fails(three: ProcMesh) -> None:
    activation = three.activate()
    with activation:
        place: Any = three.rank("dp")
        count = torch.zeros(2)
        assert inspect(place.reduce("dp")) == 3
    done: Any = die_on_one(count, place)
    total = done.reduce("dp")
    after = total + 1
    counts: list[int] = []
    with pytest.raises(DeviceMeshError):
        _count_until_lost(count, counts)
    three.heal("respawn")
    for rank in (0, 2):
        assert inspect(done, dp=rank).tolist() == [1.0, 1.0]
        assert inspect(count, dp=rank).tolist() == [len(counts), len(counts)]  # each once
        for tensor in (total, after):
            with pytest.raises(RemoteOpError) as caught:
                inspect(tensor, dp=rank)
            assert caught.value.op == "reduce" and "total = done.reduce" in caught.value.line
    with pytest.raises(DeviceMeshError) as lost:
        inspect(after, dp=1)
    check_lost(lost, 1, "rank 1")


def test_what_was_never_sent_is_executed_once_by_each_rank_that_lives(three: ProcMesh) -> None:
    with three.activate():
        x: Any = torch.ones(2)
        dropped = x + 1
        del dropped
        assert inspect(x, dp=2).tolist() == [1.0, 1.0]  # the frame ended with what drops a value
    engine = x._h.view.engine
    engine.hold(1)
    x.add_(1)
    os.kill(three.procs[1].pid, signal.SIGKILL)
    wait_until("the death", lambda: engine.broken is not None)
    engine.hold(-1)
    num_issued = engine.num_issued
    with pytest.raises(DeviceMeshError):
        inspect(x)
    three.heal("respawn")
    for rank in (0, 2):
        assert inspect(x, dp=rank).tolist() == [2.0, 2.0]
    assert engine.num_issued == num_issued  # an error's number is that of one operation


def test_ranks_may_die_again_and_again(three: ProcMesh) -> None:
    with three.activate():
        x: Any = torch.ones(2)
        assert inspect(x.reduce("dp")).tolist() == [3.0, 3.0]
    for rank in (1, 2, 1):
        kill(three, rank, _ones(three))
        three.heal("respawn")
        assert inspect(x, dp=0).tolist() == [1.0, 1.0]
        with pytest.raises(DeviceMeshError) as caught:
            inspect(x.reduce("dp"), dp=0)
        assert caught.value.kind == "lost" and caught.value.rank in (1, 2)
    x.data = x.slice_mesh(dp=0).to_mesh(three)
    assert inspect(x.reduce("dp"), dp=2).tolist() == [3.0, 3.0]
    os.kill(three.procs[0].pid, signal.SIGKILL)
    os.kill(three.procs[2].pid, signal.SIGKILL)
    num_heals = three.heals
    while three.heals < num_heals + 2:  # the deaths may become known one after the other
        with pytest.raises(DeviceMeshError, match=r"rank [02].* died"):
            reduce_until_lost(x, 1)
        three.heal("respawn")
    assert inspect(x, dp=1).tolist() == [1.0, 1.0]
    x.data = x.slice_mesh(dp=1).to_mesh(three)
    assert inspect(x.reduce("dp"), dp=2).tolist() == [3.0, 3.0]


def test_a_rank_that_dies_before_the_others_have_met_is_named_in_turn(three: ProcMesh) -> None:
    with three.activate():
        x: Any = torch.ones(2)
    kill(three, 0, x)
    three.heal("respawn")
    os.kill(three.procs[2].pid, signal.SIGKILL)
    with pytest.raises(DeviceMeshError, match=r"rank 2.* died"):
        reduce_until_lost(torch.zeros_like(x), 1)
    while three.heals < 2:  # where the death became known after the look at the procs
        three.heal("respawn")
    assert inspect(x, dp=1).tolist() == [1.0, 1.0]
    for rank in (0, 2):
        with pytest.raises(DeviceMeshError) as caught:
            inspect(x, dp=rank)
        check_lost(caught, rank, "torch.float32 of shape (2,)")


def test_random_numbers_that_begin_anew_are_not_silent(three: ProcMesh) -> None:
    with three.activate():
        x: Any = torch.ones(2)
        manual_seed(3)
    kill(three, 1, x)
    three.heal("respawn")
    with pytest.warns(RuntimeWarning, match="random numbers of rank 1 of .* begin anew"):
        inspect(x)
    with three.activate():
        manual_seed(3)
        drawn = torch.rand(2)
        assert inspect(drawn, dp=1).tolist() == inspect(drawn, dp=0).tolist()


def test_captured_steps_are_recorded_again(three: ProcMesh) -> None:
    with three.activate():
        x: Any = torch.ones(2)
        step = three.capture(lambda tensor: tensor * 2 + 1)
        for _ in range(4):
            step(x)
        assert step.num_replays == 2
        assert inspect(step(x), dp=1).tolist() == [3.0, 3.0]
    kill(three, 1, x)
    three.heal("respawn")
    with three.activate():
        x.data = torch.full((2,), 2.0)
        for rank in range(3):
            assert inspect(step(x), dp=rank).tolist() == [5.0, 5.0]


def test_each_stream_goes_on_with_its_values(three: ProcMesh) -> None:
    comms = Stream("comms")
    with three.activate():
        x: Any = torch.ones(2)
        with comms.activate():
            own: Any = torch.full((2,), 3.0)
        lent, borrow = comms.borrow(x)
        assert inspect(lent + own, dp=2).tolist() == [4.0, 4.0]
        borrow.drop()
    kill(three, 1, x)
    three.heal("respawn")
    assert inspect(x, dp=2).tolist() == [1.0, 1.0]
    with pytest.raises(DeviceMeshError, match=r"stream comms.* stopped: rank 1"):
        inspect(own, dp=2)  # once for each stream
    assert inspect(own, dp=2).tolist() == [3.0, 3.0]
    with pytest.raises(DeviceMeshError) as caught:
        inspect(own, dp=1)
    check_lost(caught, 1, "torch.float32 of shape (2,)")
    x.data = x.slice_mesh(dp=0).to_mesh(three)
    with comms.activate(), three.activate():
        own.data = torch.zeros(2)
    lent, borrow = comms.borrow(x, mutable=True)
    lent.add_(own + 1)
    borrow.drop()
    assert inspect(x.reduce("dp"), dp=1).tolist() == [6.0, 6.0]
