"""Captured steps that cannot be replayed, or fail: they run as written and say why, or name the line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import Actor, HostMesh, ProcMesh, endpoint
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.exceptions import RemoteOpError
from monarch_hpc.tensor import inspect
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle


@pytest.fixture(scope="module")
def twin(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Other procs."""
    found = hosts.slice(hosts=0).spawn_procs({"dp": 1}, preload=PRELOADED)
    settle(found)
    yield found
    found.stop().get(60)


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Mesh:
    """The procs as a mesh for sharded tensors."""
    return Mesh(procs=procs, commit=False)


class Keeper(Actor):
    @endpoint
    def keep(self, x: torch.Tensor) -> None:
        """Take a tensor."""


def test_what_cannot_be_replayed_runs_as_written_and_says_why(procs: ProcMesh) -> None:
    keepers = procs.spawn("keeper", Keeper)
    kept: list[Any] = []
    local = torch.ones(3)

    class Counter:
        number = 0

    counter = Counter()
    counter.number = 0

    def keeps(x: Any) -> Any:
        kept.append(x * 2)
        return x + 1

    def counts(x: Any) -> Any:
        counter.number += 1
        return x + 1

    def computes(x: Any) -> Any:
        return x + local * 2

    def calls(x: Any) -> Any:
        keepers.keep.broadcast(x)
        return x + 1

    def varies(x: Any) -> Any:
        return x + len(kept)

    def moves(x: Any) -> Any:
        return x.to_mesh(procs) + 1

    def returns(x: Any) -> Any:
        return x + 1, object()

    reasons = {
        keeps: "keeps a mesh tensor",
        counts: "changes 'number'",
        computes: "pass it as an argument",
        calls: "an actor is called",
        moves: "to_mesh",
        returns: "returns a value of type object",
    }
    with procs.activate():
        x = torch.ones(3)
        for function, reason in reasons.items():
            step = procs.capture(function)
            for _ in range(4):
                result = step(x)
            assert (step.num_replays, reason in step.reason) == (0, True), (function, step.reason)
            value = inspect(result[0] if function is returns else result)
            assert value.tolist() == [3.0 if function is computes else 2.0] * 3
        kept.clear()
        step = procs.capture(varies)
        for number in range(4):
            assert inspect(step(x)).tolist() == [1.0 + number] * 3
            kept.append(0)
        assert step.num_replays == 0 and "two calls differ" in step.reason and "varies" in step.reason
        parameter: Any = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([parameter], lr=0.5)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

        @procs.capture
        def scheduled() -> None:
            optimizer.zero_grad()
            parameter.sum().backward()
            optimizer.step()
            schedule.step()

        for _ in range(4):
            scheduled()
        assert inspect(parameter).tolist() == [1 - 0.5 - 0.25 - 0.125 - 0.0625] * 3
        assert (scheduled.num_replays, "changes 'lr'" in scheduled.reason) == (0, True), scheduled.reason


def test_tensors_that_change_their_shape_or_graph_and_other_procs_are_seen(procs: ProcMesh, twin: ProcMesh) -> None:
    with twin.activate():
        elsewhere = torch.ones(2)
    with procs.activate():
        buffer = torch.zeros(())
        weight = torch.ones(2, requires_grad=True)

        def transposes(x: Any) -> Any:
            x.t_()
            return x + 1

        def links(x: Any) -> Any:
            buffer.zero_().add_((weight * x).sum())
            return x + 1

        def uses_others(x: Any) -> Any:
            elsewhere.add_(1)
            return x + 1

        for function, reason in (
            (transposes, "changes the shape"),
            (links, "place in autograd's graph"),
            (uses_others, "tensors of other procs"),
        ):
            step = procs.capture(function)
            for _ in range(5):
                x = torch.ones(3, 2)
                result = step(x)
            assert (step.num_replays, reason in step.reason) == (0, True), step.reason
            assert tuple(result.shape) == tuple(x.shape) == inspect(result).shape == inspect(x).shape
        assert inspect(buffer).item() == 6
    assert inspect(elsewhere).tolist() == [6.0, 6.0]


def test_a_write_to_a_tensor_of_the_program_is_not_lost(procs: ProcMesh) -> None:
    step = procs.capture(lambda x: x.add_(1))
    with pytest.raises(TypeError, match="writes to an argument"):
        step(torch.ones(2))


def test_a_value_cannot_be_read_in_a_captured_step(procs: ProcMesh, mesh: Mesh) -> None:
    with procs.activate():
        x: Any = torch.ones(3)

        @procs.capture
        def reads(batch: Any) -> Any:
            return batch if inspect(batch).sum() > 0 else -batch

        with pytest.raises(TypeError, match=r"torch\.where"):
            reads(x)
        assert inspect(x + 1).tolist() == [2.0] * 3

    @mesh.capture
    def branches(batch: Any) -> Any:
        return batch if batch.sum() > 0 else -batch

    dt: Any = distribute(torch.ones(4), mesh, ["dp"])
    with pytest.raises(TypeError, match=r"torch\.where"):
        branches(dt)
    with pytest.raises(ValueError, match="sharded"):
        branches(x)
    assert torch.equal((dt + 1).full_tensor(), torch.full((4,), 2.0))


def test_a_failure_in_a_replay_names_the_line_and_spoils_what_depends_on_it(procs: ProcMesh) -> None:
    with procs.activate():
        table = torch.arange(4.0)

        @procs.capture
        def step(index: Any, x: Any) -> Any:
            return table.index_select(0, index), x + 1  # the line

        x = torch.ones(2)
        for _ in range(4):
            step(torch.tensor([1, 2]), x)
        bad, good = step(torch.tensor([1, 9]), x)
        assert step.num_replays == 3
        assert inspect(good).tolist() == [2.0] * 2
        with pytest.raises(RemoteOpError, match="the line") as caught:
            inspect(bad + 1)
        assert "test_capture_refusals.py" in str(caught.value)
        again, _ = step(torch.tensor([3, 0]), x)
        assert inspect(again).tolist() == [3.0, 0.0]


@pytest.mark.parametrize("repaired_at", [6, 8])
def test_a_parameter_that_was_lost_is_stepped_again_once_it_has_contents(procs: ProcMesh, repaired_at: int) -> None:
    found = []
    for captured in (False, True):
        with procs.activate():
            weight, other = (torch.ones(3, requires_grad=True) for _ in range(2))
            optimizer = torch.optim.Adam([weight, other], lr=0.1)

            def written(
                x: Any, index: Any, weight: Any = weight, other: Any = other, optimizer: Any = optimizer
            ) -> None:
                optimizer.zero_grad()
                (x * weight[index]).sum().backward()
                (x * other).square().sum().backward()
                optimizer.step()

            step: Any = procs.capture(written) if captured else written
            x, good, bad = torch.ones(3) / 3, torch.tensor([0, 1, 2]), torch.tensor([0, 1, 9])
            for turn in range(11):
                step(x, bad if turn == 6 else good)
                if turn == repaired_at:
                    with pytest.raises(RemoteOpError, match=r"weight\[index\]"):
                        inspect(weight, dp=0)
                    for value in (weight, *(optimizer.state[weight][name] for name in ("exp_avg", "exp_avg_sq"))):
                        value.data = torch.ones(3) / 2
            found.append([inspect(one, dp=0).detach().tolist() for one in (weight, other)])
    assert found[0] == found[1] and step.num_replays


def test_verify_finds_what_guards_do_not_see(procs: ProcMesh) -> None:
    hidden = iter([1, 1, 1, 2])

    with procs.activate():
        x = torch.ones(3)

        def written(batch: Any) -> Any:
            return batch * next(hidden)

        step = procs.capture(written, verify=True)

        for _ in range(3):
            step(x)
        with pytest.raises(RuntimeError, match="would be wrong"):
            step(x)
