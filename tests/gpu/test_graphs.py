"""CUDA graphs of operators: the same values as the operators, on memory that stays and that moves."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.lowered.graphs.cuda import CudaGraph
from monarch_hpc.tensor.worker.lowered.graphs.plan import RECORDERS, describe
from tests.unit.tensor.traced import TracedStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason=f"torch {torch.__version__} does not reach a GPU"),
]


def train(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """A step of a network of two layers, with its gradients written out; updates its weights in place."""
    x, first, second = given
    hidden = (x @ first).tanh()
    error = hidden @ second - x
    grad = error * (2 / error.numel())
    back = (grad @ second.t()) * (1 - hidden * hidden)
    second.sub_(hidden.t() @ grad, alpha=0.1)
    first.sub_(x.t() @ back, alpha=0.1)
    return [error.square().mean(), hidden.t(), first.t()]


def arguments(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((32, 16), (16, 64), (64, 16))
    return [torch.randn(shape, generator=generator).cuda() / 4 for shape in shapes]


def close(some: list[torch.Tensor], others: list[torch.Tensor]) -> None:
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("own", [False, True])
def test_graphs_give_what_their_operators_give(own: bool) -> None:
    assert RECORDERS["cuda"] is CudaGraph
    graphed, plain = arguments(0), arguments(0)
    step = TracedStep(train, graphed, GraphLimits(1, 4))
    stream: Any = torch.cuda.Stream() if own else torch.cuda.default_stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    held = []
    for turn in range(12):
        batch = arguments(turn)[0]
        batches = [batch.clone(), batch.clone()]  # elsewhere in each step
        if turn == 6:
            graphed[1] = graphed[1].clone()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = step([batches[0], *graphed[1:]])
        expected = step([batches[1], *plain[1:]], graphs=False)
        torch.cuda.synchronize()
        close(found, expected)
        close(graphed[1:], plain[1:])
        assert found[2].untyped_storage().data_ptr() == graphed[1].untyped_storage().data_ptr()
        held.append((found[:2], [one.clone() for one in expected[:2]]))
    for found, expected in held:
        close(found, expected)
    assert step.num_replays >= 6 and describe(step.stretches) == ""


def test_a_capture_that_fails_leaves_operators_that_run() -> None:
    x = arguments(0)[0]

    def code(slots: list[Any]) -> None:
        slots[1] = slots[0] + 1
        slots[1].cpu()  # waits, which no capture may

    before = x.clone()
    with pytest.raises(RuntimeError):
        CudaGraph(code, [x, None])
    torch.cuda.synchronize()
    assert torch.equal(x + 1, before + 1)
    y = torch.empty(1 << 22, device="cuda")
    y.record_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    with_it = torch.cuda.memory_allocated()
    del y
    torch.cuda.synchronize()
    torch.empty(1, device="cuda")  # makes the allocator look at what other streams have used, outside captures
    assert torch.cuda.memory_allocated() < with_it


def test_memory_of_a_graph_goes_with_it() -> None:
    given = arguments(0)
    step = TracedStep(train, given, GraphLimits(1, 4))
    for _ in range(4):
        step(given)
    assert step.num_replays == 2
    with_graph = torch.cuda.memory_allocated()
    del step
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() < with_graph
