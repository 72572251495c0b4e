"""Captured steps that ranks replay below DTensor and autograd: the same bits, or as recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from monarch_hpc import ProcMesh
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.tensor import remote
from tests.system.tensor.lowered import NETWORKS, NUM_CALLS, bits, lowering, train


@pytest.fixture(scope="module")
def mesh(procs: ProcMesh) -> Mesh:
    """The procs as a mesh for sharded tensors."""
    return Mesh(procs=procs, commit=False)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_has_the_same_bits(mesh: Mesh, name: str) -> None:
    as_written, _ = train(mesh, name, lambda step: step, 10)
    recorded, _ = train(mesh, name, lambda step: mesh.capture(step, lower=False), 10)
    lowered, run = train(mesh, name, mesh.capture, 10)
    assert as_written == recorded == lowered
    assert lowering(run) == {""}


OPERATIONS = ["add", "mul", "matmul", "view", "row", "write", "write_row", "t", "sum", "mean", "cat", "gelu", "detach"]

STEPS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=12)


def random_step(steps: list[tuple[str, int, int]], weight: Any, buffer: Any) -> Callable[[Any], Any]:
    """A step that runs operations on 4 x 4 tensors, writes to *buffer*, and updates *weight* by its gradient."""

    def step(x: Any) -> Any:
        live = [x, weight, x * 0.5 + weight]
        for kind, first, second in steps:
            one, other = live[first % len(live)], live[second % len(live)]
            match kind:
                case "add":
                    live.append(one + other)
                case "mul":
                    live.append((one * other).clamp(-10, 10))
                case "matmul":
                    live.append((one @ other).tanh())
                case "view":
                    live.append((one + 1).contiguous().view(2, 8).view(4, 4))
                case "row":
                    live.append(one[1].expand(4, 4))
                case "write":
                    buffer.copy_(one.detach() * 0.5 + buffer)
                case "write_row":
                    buffer[second % 4] = one.detach()[first % 4]
                case "t":
                    live.append(one.t())
                case "sum":
                    live.append(one + other.sum(0, keepdim=True) / 8)
                case "mean":
                    live.append(one - other.mean())
                case "cat":
                    live.append(torch.cat([one, other])[2:6])
                case "gelu":
                    live.append(nn.functional.gelu(one))
                case "detach":
                    live.append(one.detach() + buffer)
        loss = sum(tensor.tanh().square().mean() for tensor in live)
        weight.grad = None
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad * 0.1)
        return loss.detach()

    return step


@hypothesis.settings(max_examples=25)
@hypothesis.given(steps=STEPS, weight=st.sampled_from(["dp", None]), data=st.sampled_from(["dp", None]))
def test_a_random_step_has_the_same_bits(
    mesh: Mesh, steps: list[tuple[str, int, int]], weight: str | None, data: str | None
) -> None:
    found = []
    for capture in (False, True):
        torch.manual_seed(1)
        leaf = distribute(torch.randn(4, 4), mesh, [weight] if weight else []).requires_grad_()
        buffer = distribute(torch.randn(4, 4), mesh, [])
        step = random_step(steps, leaf, buffer)
        run = mesh.capture(step) if capture else step
        outs = []
        for _ in range(NUM_CALLS):
            outs.append(run(distribute(torch.randn(4, 4), mesh, [data] if data else [])))
        found.append(bits([*outs, leaf, buffer]))
    assert found[0] == found[1], steps
    hypothesis.event(f"lowered: {', '.join(sorted(lowering(run))) or 'yes'}")


def test_gradients_add_up_over_replays(mesh: Mesh) -> None:
    found = []
    for capture in (False, True):
        weight = distribute(torch.arange(16.0).reshape(4, 4), mesh, []).requires_grad_()
        x = distribute(torch.ones(4, 4) / 3, mesh, ["dp"])

        def accumulate(x: Any, weight: Any = weight) -> None:
            (x @ weight).square().sum().backward()

        run = mesh.capture(accumulate) if capture else accumulate
        for _ in range(NUM_CALLS):
            run(x)
        first = bits([weight.grad])
        for _ in range(3):  # the sum was placed as the weight is, to be read
            run(x)
        found.append([first, bits([weight.grad])])
    assert found[0] == found[1]
    assert lowering(run) == {""}


def test_a_gradient_that_was_read_is_added_to(mesh: Mesh) -> None:
    found = []
    for lower in (False, True):
        weight = distribute(torch.arange(16.0).reshape(4, 4), mesh, []).requires_grad_()
        x = distribute(torch.ones(4, 4) / 3, mesh, [])

        def step(x: Any, weight: Any = weight) -> Any:
            weight.grad = None
            (x @ weight).square().sum().backward()
            with torch.no_grad():
                weight.grad.mul_(0.5)
            loss = (x @ weight).sum()
            loss.backward()
            return loss.detach()

        run = mesh.capture(step, lower=lower)
        outs = [run(x) for _ in range(NUM_CALLS)]
        found.append(bits([*outs, weight.grad]))
        mesh.sync()
    assert found[0] == found[1]
    assert lowering(run) == {""}


def test_a_result_whose_backward_pass_is_done_has_none_left(mesh: Mesh) -> None:
    weight = distribute(torch.ones(4, 4), mesh, []).requires_grad_()

    @mesh.capture
    def step(x: Any) -> Any:
        loss = (x @ weight).square().mean()
        weight.grad = None
        loss.backward()
        return loss

    x = distribute(torch.ones(4, 4), mesh, ["dp"])
    for _ in range(NUM_CALLS):
        loss = step(x)
    assert lowering(step) == {""}
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        mesh.sync()
    assert loss.item() == 16.0


def test_what_is_not_only_operators_is_replayed_as_recorded(mesh: Mesh) -> None:
    weight = distribute(torch.ones(4, 4), mesh, []).requires_grad_()
    x: Any = distribute(torch.ones(4, 4), mesh, ["dp"])
    ones = remote(torch.ones_like, propagate=torch.ones_like)

    def with_history(x: Any) -> Any:
        return x @ weight

    def with_a_call(x: Any) -> Any:
        return ones(x) + x

    def with_a_view(x: Any) -> Any:
        return weight.detach()[:2] + 0, x.view(16)

    for function, reason in (
        (with_history, "with a history"),
        (with_a_call, "calls functions or modules"),
        (with_a_view, "returns views"),
    ):
        step = mesh.capture(function)
        expected = bits(out if isinstance(out := function(x), tuple) else (out,))
        for _ in range(NUM_CALLS):
            found = step(x)
        assert bits(found if isinstance(found, tuple) else (found,)) == expected
        assert all(reason in why for why in lowering(step)), (function, lowering(step))
    with pytest.raises(ValueError, match="is not replayed"):
        mesh.capture(with_history).lowering()


@pytest.mark.parametrize("in_order", [True, False])
def test_arguments_that_were_other_values_need_not_be_so_again(mesh: Mesh, in_order: bool) -> None:
    found = []
    for lower in (False, True):
        torch.manual_seed(0)
        weight, other = (distribute(torch.randn(4, 4), mesh, []) for _ in range(2))

        def step(x: Any, weight: Any = weight) -> Any:
            return x @ weight + x if in_order else weight @ x + x

        run = mesh.capture(step, lower=lower)
        outs = [run(weight.detach()) for _ in range(NUM_CALLS)]
        assert lowering(run) == ({""} if lower else {"it was asked not to (lower=False)"})
        outs += [run(other) for _ in range(NUM_CALLS)]
        found.append(bits(outs))
    assert found[0] == found[1]
    assert lowering(run) == {""}


@pytest.mark.parametrize("first", ["use", "add"])
def test_a_gradient_that_is_an_argument_is_used_as_recorded(mesh: Mesh, first: str) -> None:
    found = []
    for lower in (False, True):
        torch.manual_seed(0)
        weight = distribute(torch.randn(4, 4), mesh, []).requires_grad_()
        x = distribute(torch.ones(4, 4), mesh, [])
        other = distribute(torch.randn(4, 4), mesh, [])
        (x @ weight).sum().backward()  # type: ignore[no-untyped-call]

        def step(grad: Any, weight: Any = weight, x: Any = x) -> Any:
            twice = grad * 2 if first == "use" else None
            (x @ weight).square().mean().backward()
            return grad * 2 if twice is None else twice

        run = mesh.capture(step, lower=lower)
        outs = [run(weight.grad) for _ in range(NUM_CALLS)]
        outs += [run(other) for _ in range(2)]
        found.append(bits([*outs, weight.grad]))
    assert found[0] == found[1]
    assert run.num_replays


def test_a_step_is_recorded_again_when_a_gradient_is_placed_otherwise(mesh: Mesh) -> None:
    weight = distribute(torch.ones(4, 4), mesh, []).requires_grad_()
    x = distribute(torch.ones(4, 4), mesh, ["dp"])

    @mesh.capture
    def accumulate(x: Any) -> Any:
        loss = (x @ weight).square().mean()
        loss.backward()
        return loss.detach()

    for _ in range(NUM_CALLS):
        accumulate(x)
    assert lowering(accumulate) == {""}
    assert weight.grad.full_tensor().sum().item() == NUM_CALLS * 32.0  # summed now, as it was not before
    for turn in range(4):
        with mesh.communication():
            accumulate(x)
        assert weight.grad.full_tensor().sum().item() == (NUM_CALLS + turn + 1) * 32.0
    for _ in range(NUM_CALLS):
        accumulate(x)
    assert weight.grad.full_tensor().sum().item() == (2 * NUM_CALLS + 4) * 32.0
    assert lowering(accumulate) == {""}
