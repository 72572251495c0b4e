"""Runs of operators that are replayed as graphs do what the operators do, whatever memory they get."""

from __future__ import annotations

from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.stream.records import GraphLimits
from monarch_hpc.tensor.worker.lowered.graphs.plan import RECORDERS, describe
from tests.unit.tensor.raw_graph import RawGraph
from tests.unit.tensor.traced import TracedStep

LIMITS = GraphLimits(1, 4)


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs have graphs."""
    monkeypatch.setitem(RECORDERS, "cpu", RawGraph)


def bits(tensors: Any) -> list[Any]:
    return [(tuple(t.shape), t.stride(), t.contiguous().numpy().tobytes()) for t in tensors]


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """Its value, in other memory and laid out likewise."""
    return tensor.clone(memory_format=torch.preserve_format)


def check_calls(function: Any, calls: list[list[torch.Tensor]], num_replays: int) -> TracedStep:
    """Check that calls do what the function does, that so many were replays, and that no result changes later."""
    step = TracedStep(function, calls[0], LIMITS)
    held = []
    for given in calls:
        memories = {tensor.untyped_storage()._cdata: moved(whole(tensor)) for tensor in given}
        plain = [
            memories[tensor.untyped_storage()._cdata].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
            for tensor in given
        ]
        expected, found = function(plain), step(given)
        assert bits(found) == bits(expected) and bits(given) == bits(plain)
        held.append((found, bits(found)))
    assert all(bits(found) == then for found, then in held)
    assert step.num_replays == num_replays
    return step


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def test_an_argument_that_moves_is_copied_and_written_back_and_views_of_it_are_of_it() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        given[0].t()[1:3].sub_(1)
        return [given[0].t(), given[0] * 2]

    x = torch.randn(4, 4)
    calls = [[moved(x)] for _ in range(6)]
    step = TracedStep(function, calls[0], LIMITS)
    for (given,) in calls:
        view, _ = step([given])
        assert view.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
        view[0, 0] = 7.0
        assert given[0, 0] == 7.0 and torch.equal(given[:, 1:3], x[:, 1:3] - 1)
    assert step.num_replays == 4 and describe(step.stretches) == ""


def test_statistics_that_an_operator_updates_without_saying_so_are_written_back() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.native_batch_norm(given[0], None, None, given[1], given[2], True, 0.1, 1e-5)[0]]

    check_calls(function, [[torch.randn(4, 4), torch.zeros(4), torch.ones(4)] for _ in range(6)], 4)


def test_what_is_laid_out_otherwise_or_lies_crooked_runs_by_operators() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [given[0] @ given[0] + 1]

    straight = [[torch.randn(4, 4)] for _ in range(4)]
    check_calls(function, [*straight, [torch.randn(4, 4).t()]], 2)
    check_calls(function, [*straight, [torch.randn(20)[1:17].view(4, 4)]], 2)
    check_calls(function, [*straight, *straight], 6)


def test_arguments_that_come_to_share_memory_are_not_copied_apart() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        given[1].add_(1)
        return [given[0] * 2]

    apart = [[torch.randn(4, 4), torch.randn(4, 4)] for _ in range(4)]
    both = torch.randn(4, 4)
    check_calls(function, [*apart, [both, both], *apart[:1]], 2)
    shared = [[base, base.t()] for base in (torch.randn(4, 4) for _ in range(16))]
    step = check_calls(function, shared, 4)  # each graph is replayed once, as the memory is another one then
    assert describe(step.stretches) == (
        "2 of 2 operators are not in graphs: 2 memory or shapes that change too often (tensor.graph_captures)"
    )


def test_arguments_that_share_memory_and_stay_are_used_where_they_lie() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        given[1].add_(1)
        return [given[0] * 2]

    base = torch.randn(4, 4)
    check_calls(function, [[base, base.t()]] * 6, 4)


def test_memory_of_a_graph_is_copied_where_a_view_of_it_outlives_the_step() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        made = given[0] + 1
        other = given[0].as_strided((4,), (1,), 0) + 1  # ends the graph
        given[0].add_(1)
        return [made.t(), other]

    x = torch.randn(4, 4)
    step = check_calls(function, [[x]] * 5, 6)
    assert [one.graph is None for one in step.stretches] == [False, True, False]
    assert describe(step.stretches) == (
        "1 of 5 operators are not in graphs: 1 as_strided, which counts from the start of a tensor's memory"
    )


def test_a_write_to_a_view_from_before_the_graph_is_written_back() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        view = given[0].t()
        other = given[1].as_strided((4,), (1,), 0)  # ends the graph
        view[:2].add_(1)
        return [other + 1]

    check_calls(function, [[torch.randn(4, 4), torch.randn(4, 4)] for _ in range(6)], 8)


def test_parameters_that_are_replaced_are_used_again_after_some_calls() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        given[0].sub_(given[1], alpha=0.5)
        return [given[0].sum()]

    first, second, x = (torch.randn(4, 4) for _ in range(3))
    num = RawGraph.num_captures
    check_calls(function, [*[[first, x]] * 4, *[[second, x]] * 4, *[[moved(second), x] for _ in range(3)]], 7)
    assert RawGraph.num_captures == num + 2


def test_operators_that_cannot_be_captured_run_as_they_are() -> None:
    def function(given: list[torch.Tensor]) -> list[torch.Tensor]:
        return [given[0][given[1]] + 1]

    class Refusing(RawGraph):
        def __init__(self, code: Any, slots: list[Any]) -> None:
            super().__init__(code, slots)
            raise RuntimeError("operation not permitted when stream is capturing\nand more")

    x, index = torch.randn(4, 4), torch.tensor([2, 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECORDERS, "cpu", Refusing)
        step = check_calls(function, [[x, index]] * 5, 0)
    assert describe(step.stretches) == (
        "2 of 2 operators are not in graphs: 2 RuntimeError: operation not permitted when stream is capturing"
    )


OPERATIONS = [
    "position",
    "add",
    "matmul",
    "view",
    "t",
    "row",
    "rows",
    "cat",
    "sum",
    "expand",
    "unbind",
    "norm",
    "number",
    "detach",
]
WRITES = ["add_", "copy_row", "fill", "mul_each", "write_view"]
STEPS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS + WRITES), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=14
)


def random_function(steps: list[tuple[str, int, int]], returned: list[int]) -> Any:
    """A function of 4 x 4 tensors and two of 4 elements."""

    def function(given: list[Any]) -> list[Any]:
        *live, mean, variance = given
        num_given = len(live)
        for kind, first, second in steps:
            one, other = live[first % len(live)], live[second % len(live)]
            match kind:
                case "add":
                    live.append(one + other * 0.5)
                case "matmul":
                    live.append((one @ other).tanh())
                case "position":
                    live.append(one.as_strided((4, 4), one.stride(), one.storage_offset()) + 1)
                case "view":
                    live.append(one.reshape(2, 8).view(4, 4))
                case "t":
                    live.append(one.t())
                case "row":
                    live.append(one[second % 4].expand(4, 4))
                case "rows":
                    live.append(torch.cat([one[1:], other[:1]]))
                case "cat":
                    live.append(torch.cat([one, other])[2:6])
                case "sum":
                    live.append(one + other.sum(0, keepdim=True) / 8)
                case "expand":
                    live.append(other.mean(0, keepdim=True).expand(4, 4))
                case "unbind":
                    live.append(torch.stack(list(one.unbind(1))[::-1]))
                case "norm":
                    live.append(torch.native_batch_norm(one, None, None, mean, variance, True, 0.1, 1e-5)[0])
                case "number":
                    live.append(one * torch.tensor(1.5))
                case "detach":
                    live.append(one.detach())
                case "add_":
                    if 0 not in one.stride():
                        one.add_(other.clone(), alpha=0.25)
                case "copy_row":
                    if 0 not in one.stride():
                        one[second % 4] = other.clone()[first % 4]
                case "fill":
                    if 0 not in one.stride():
                        one.view(-1)[second % 16 :].fill_(0.5) if one.is_contiguous() else one.fill_(0.75)
                case "mul_each":
                    given[first % num_given].mul_(0.5)
                    given[second % num_given].add_(1)
                case "write_view":
                    if 0 not in one.stride():
                        one.t()[1:3].sub_(1)
        return [live[place % len(live)] for place in returned]

    return function


class Arguments:
    """Tensors in some memory each; another one of these has the same, elsewhere."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.bases = [torch.randn(40, generator=generator) for _ in range(4)]
        self.views = [(0, 0), (1, 0), (2, 16), (3, 0)]  # memory and offset of each 4 x 4 tensor
        self.statistics = [torch.zeros(4), torch.ones(4)]

    def change(self, change: tuple[str, int, int]) -> None:
        kind, which, other = change
        if kind == "move":
            self.bases[which] = self.bases[which].clone()
        elif kind == "alias":
            self.views[which] = (self.views[other][0], self.views[which][1])
        elif kind == "shift":
            self.views[which] = (self.views[which][0], 16 if self.views[which][1] == 0 else 0)
        elif kind == "part":
            self.views[which] = (which, 0)

    def tensors(self) -> list[torch.Tensor]:
        return [self.bases[base][at : at + 16].view(4, 4) for base, at in self.views] + self.statistics


CHANGES = st.tuples(
    st.sampled_from(["move", "move", "alias", "shift", "part", "same", "same"]), st.integers(0, 3), st.integers(0, 3)
)


@pytest.mark.slow  # each example runs up to twelve steps twice
@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    steps=STEPS,
    returned=st.lists(st.integers(0, 20), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 20), max_size=3),
    changes=st.lists(st.lists(CHANGES, max_size=2), min_size=6, max_size=12),
)
def test_a_random_function_has_the_same_bits(
    steps: list[tuple[str, int, int]], returned: list[int], cuts: list[int], changes: list[list[tuple[str, int, int]]]
) -> None:
    graphed, plain = Arguments(0), Arguments(0)
    step = TracedStep(random_function(steps, returned), graphed.tensors(), LIMITS, cuts)
    held: list[tuple[list[torch.Tensor], list[Any]]] = []
    for turn in changes:
        for change in turn:
            graphed.change(change)
            plain.change(change)
        outs, expected = step(graphed.tensors()), step(plain.tensors(), graphs=False)
        assert bits(outs) == bits(expected)
        assert bits([*graphed.bases, *graphed.statistics]) == bits([*plain.bases, *plain.statistics])
        held.append((expected, outs))
    for expected, outs in held:  # views of arguments have seen later writes, too
        assert bits(outs) == bits(expected)
    hypothesis.event(f"replays: {min(step.num_replays, 4)}")
