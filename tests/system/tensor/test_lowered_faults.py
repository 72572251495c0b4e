"""Steps below DTensor that fail, or lose ranks, and ranks that do not agree how to replay them."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.grid_training import GridTraining
from monarch_hpc import Actor, ProcMesh, endpoint
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.exceptions import RemoteOpError
from monarch_hpc.tensor.worker.lowered import replays
from tests.system.tensor.lowered import NUM_CALLS, bits, lose_a_rank, lowering


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Mesh:
    """The procs as a mesh for sharded tensors."""
    return Mesh(procs=procs, commit=False)


def test_a_failure_spoils_what_it_would_and_the_step_goes_on(mesh: Mesh) -> None:
    found = []
    for lower in (False, True):
        table = distribute(torch.arange(12.0).reshape(4, 3), mesh, []).requires_grad_()
        buffer = distribute(torch.zeros(3), mesh, [])

        def step(index: Any, x: Any, table: Any = table, buffer: Any = buffer) -> Any:
            buffer.add_(1)
            rows = table[index]
            table.grad = None
            (rows * 2).sum().backward()
            return rows.detach() + 1, x * 3 + buffer

        run = mesh.capture(step, lower=lower)
        x = distribute(torch.ones(3), mesh, [])
        seen: list[Any] = []
        for turn in range(8):
            index = distribute(torch.tensor([0, 9 if turn == 5 else turn % 4]), mesh, [])
            rows, other = run(index, x)
            if turn == 5:
                with pytest.raises(
                    RemoteOpError, match=r"out of (bounds|range).*\n(.*\n)*.*rows = table\[index\]"
                ) as caught:
                    rows.full_tensor()
                seen.append(type(caught.value).__mro__[1].__name__)
                with pytest.raises(RemoteOpError, match="out of"):
                    table.grad.full_tensor()
                seen += bits([other, buffer])
            else:
                seen += bits([rows, other, table.grad, buffer])
        found.append(seen)
        assert lowering(run) == ({""} if lower else {"it was asked not to (lower=False)"})
    assert found[0] == found[1]


def test_a_failure_before_gradients_are_read_spoils_them_and_the_step_of_the_optimizer(mesh: Mesh) -> None:
    found = []
    for lower in (False, True):
        torch.manual_seed(1)
        table = distribute(torch.randn(4, 3), mesh, []).requires_grad_()
        other, third = (distribute(torch.randn(3), mesh, []).requires_grad_() for _ in range(2))
        optimizers = [torch.optim.SGD([one], lr=0.1, momentum=0.9) for one in (table, other)]

        def step(
            index: Any, x: Any, table: Any = table, other: Any = other, third: Any = third, optimizers: Any = optimizers
        ) -> Any:
            table.grad = other.grad = third.grad = None
            fine = (x * other).sum()
            fine.backward()
            ((x[:2] * table[index]).sum() + third.sum()).backward()  # of which the gradient of third needs no value
            norms = [nn.utils.clip_grad_norm_([one], 0.5) for one in (other, table)]
            for optimizer in optimizers:
                optimizer.step()
            return fine.detach(), *norms

        run = mesh.capture(step, lower=lower)
        seen: list[Any] = []
        for turn in range(9):
            index = distribute(torch.tensor([0, 9 if turn == 6 else turn % 4]), mesh, [])
            x = distribute(torch.randn(4, 3, generator=torch.Generator().manual_seed(turn)), mesh, ["dp"])
            results = run(index, x)
            if turn >= 6:  # the parameter itself is lost with the step that has failed
                for spoilt in (results[2], table, *([third.grad] if turn == 6 else [])):
                    with pytest.raises(RemoteOpError, match=r"out of (bounds|range)"):
                        spoilt.full_tensor()
                seen += bits([*results[:2], other])
            else:
                seen += bits([*results, table, other])
        found.append(seen)
        mesh.sync()  # there are no other errors
        assert lowering(run) <= (
            {"", "what it uses from outside has changed"} if lower else {"it was asked not to (lower=False)"}
        )
    assert found[0] == found[1]


def test_a_death_among_steps_below_dtensor_is_healed_exactly(grid_of_its_own: ProcMesh) -> None:
    num, at = 14, 9
    mesh = Mesh(procs=grid_of_its_own)
    undisturbed = GridTraining(mesh, num)
    expected = [undisturbed.step(*batch) for batch in undisturbed.batches]
    training = GridTraining(mesh, num, captured=True)

    def check() -> None:
        assert lowering(training.on_ranks) == {""}

    lose_a_rank(mesh, training, at, check, undisturbed, expected)


class Recorded(Actor):
    """Has the ranks of its proc replay steps as recorded."""

    @endpoint
    def begin(self) -> None:
        """From now on."""
        replays._MAX_RECORDINGS = 0


def test_ranks_need_not_agree(grid_of_its_own: ProcMesh) -> None:
    mesh = Mesh(procs=grid_of_its_own)
    found = []
    for capture in (False, True):
        torch.manual_seed(0)
        weights = [distribute(torch.randn(4, 4), mesh, []).requires_grad_() for _ in range(2)]
        optimizer = torch.optim.AdamW(weights, lr=0.01)
        x = distribute(torch.randn(8, 4), mesh, ["dp"])

        def step(x: Any, weights: Any = weights, optimizer: Any = optimizer) -> Any:
            loss = (x @ weights[0] @ weights[1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 0.5)  # sums all gradients in one message
            total = x.sum()
            optimizer.step()  # commits, which adds the total up
            return loss.detach() + total / 64

        run: Any = mesh.capture(step) if capture else step
        if capture:
            mesh.procs.slice(dp=1, tp=0).spawn("recorded", Recorded).begin.call().get(60)
        found.append([run(x).item() for _ in range(10)] + bits(weights))
    assert found[0] == found[1]
    assert sorted(run.lowering().values()) == ["", "", "", "it was replayed too seldom"]


def test_a_sum_that_a_commit_has_added_up_is_read_anew_once_it_was_written_to(procs: ProcMesh) -> None:
    mesh = Mesh(procs=procs)
    total = distribute(torch.ones(4, 4), mesh, ["dp"]).sum()
    one = distribute(torch.tensor(1.0), mesh, [])

    @mesh.capture
    def double(x: Any) -> Any:
        total.mul_(2)
        return x * 2

    for _ in range(NUM_CALLS):
        double(one)
    assert lowering(double) == {""}
    mesh.commit()
    assert total.item() == 16.0 * 2**NUM_CALLS
    double(one)
    assert total.item() == 32.0 * 2**NUM_CALLS


def test_a_write_that_fails_spoils_what_shares_its_memory(mesh: Mesh) -> None:
    for lower in (False, True):
        buffer = distribute(torch.zeros(4), mesh, [])

        def step(index: Any, x: Any, buffer: Any = buffer) -> Any:
            buffer.add_(1)
            buffer.view(4)[index] = x
            return x + 1

        run = mesh.capture(step, lower=lower)
        x = distribute(torch.ones(2), mesh, [])
        good, bad = (distribute(torch.tensor(numbers), mesh, []) for numbers in ([0, 1], [0, 9]))
        for _ in range(NUM_CALLS):
            run(good, x)
        assert lowering(run) == ({""} if lower else {"it was asked not to (lower=False)"})
        assert buffer.full_tensor().tolist() == [1.0, 1.0, 7.0, 7.0]
        assert run(bad, x).full_tensor().tolist() == [2.0, 2.0]
        with pytest.raises(RemoteOpError, match="out of"):
            buffer.full_tensor()


@pytest.mark.parametrize("at", [1, NUM_CALLS - 1])
def test_an_optimizer_steps_the_parameters_that_have_not_failed(mesh: Mesh, at: int) -> None:
    found = []
    for how in ("as written", "as recorded", "below DTensor"):
        torch.manual_seed(0)
        weights = [distribute(torch.randn(4), mesh, []).requires_grad_() for _ in range(3)]
        optimizer = torch.optim.AdamW(weights, lr=0.1)

        def step(index: Any, x: Any, weights: Any = weights, optimizer: Any = optimizer) -> Any:
            optimizer.zero_grad()
            weights[0][index].square().sum().backward()
            (x * weights[1]).square().sum().backward()  # and none of the last one
            optimizer.step()
            return (x * weights[1]).detach()

        run: Any = step if how == "as written" else mesh.capture(step, lower=how == "below DTensor")
        outs = []
        for turn in range(NUM_CALLS + 3):
            index = distribute(torch.tensor([0, 9 if turn == at else 1]), mesh, [])
            outs.append(run(index, distribute(torch.randn(4), mesh, ["dp"])))
        for spoilt in (weights[0], weights[0].grad, optimizer.state[weights[0]]["exp_avg"]):
            with pytest.raises(RemoteOpError, match=r"weights\[0\]\[index\]"):
                spoilt.full_tensor()
        states = [value for weight in weights[1:] for value in optimizer.state[weight].values()]
        found.append([*bits([*outs, *weights[1:]]), *map(str, states[:1]), *bits(states[1:])])
        mesh.sync()  # there are no other errors
    assert found[0] == found[1] == found[2]


def _write_in_the_step(index: Any, x: Any, weight: Any, buffer: Any) -> Any:
    view = buffer.view(4)
    buffer[index] = x.detach()
    return view + 1, buffer * 2, x + 1


def _read_twice(index: Any, x: Any, weight: Any, buffer: Any) -> Any:
    weight.grad = None
    (x * buffer[index] * weight[:2]).sum().backward()
    twice = weight.grad * 2
    with torch.no_grad():
        buffer.add_(weight.grad)
    return weight.grad + 1, twice, x + 1


def _written_by_a_failure(index: Any, x: Any, weight: Any, buffer: Any) -> Any:
    weight.grad = None
    (buffer * weight).sum().backward()
    with torch.no_grad():
        weight.grad.mul_(buffer[index].sum())
    return x + 1


@pytest.mark.parametrize("written", [_write_in_the_step, _read_twice, _written_by_a_failure])
def test_a_failure_spoils_what_uses_a_value_that_lies_in_a_slot(mesh: Mesh, written: Any) -> None:
    found = []
    for how in ("as written", "as recorded", "below DTensor"):
        weight = distribute(torch.ones(4), mesh, []).requires_grad_()
        buffer = distribute(torch.ones(4), mesh, [])

        def step(index: Any, x: Any, weight: Any = weight, buffer: Any = buffer) -> Any:
            return written(index, x, weight, buffer)

        run: Any = step if how == "as written" else mesh.capture(step, lower=how == "below DTensor")
        x = distribute(torch.ones(2), mesh, ["dp"])
        good, bad = (distribute(torch.tensor(numbers), mesh, []) for numbers in ([0, 1], [0, 9]))
        for _ in range(NUM_CALLS):
            run(good, x)
        if how == "below DTensor":
            assert lowering(run) == {""}
        results = run(bad, x)
        seen: list[Any] = []
        for one in (*(results if isinstance(results, tuple) else (results,)), weight, weight.grad, buffer):
            try:
                seen += bits([one]) if one is not None else [None]
            except RemoteOpError as error:
                seen.append((type(error).__mro__[1], str(error).partition(": ")[0], str(error).splitlines()[1]))
        found.append(seen)
        mesh.sync()  # there are no other errors
    assert found[0] == found[1] == found[2]
    assert any(isinstance(one, tuple) for one in found[0])
