"""Captured steps whose operators are replayed as graphs, of a CPU here: the bits of steps as written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

pytest.importorskip("torch")

import torch

from benchmarks.grid_training import GridTraining
from monarch_hpc import Actor, ProcMesh, endpoint
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.exceptions import RemoteOpError
from monarch_hpc.tensor.testing import local_mesh
from monarch_hpc.tensor.worker.lowered.graphs.plan import RECORDERS
from tests.system.tensor.lowered import NETWORKS, bits, lose_a_rank, lowering, train
from tests.system.tensor.test_lowered_steps import STEPS, random_step
from tests.unit.tensor.raw_graph import RawGraph

TOLD = {
    "dropout": ("3 collectives", "1 random numbers, which are those of a generator of the CPU"),
    "batchnorm": ("12 collectives",),
    "layernorm": ("3 collectives",),
}
"""Operators of trainings that are not in graphs, by network."""

NUM_CALLS = 11
"""Enough for the last ones to be replayed by graphs."""


@contextlib.contextmanager
def graphed_mesh() -> Iterator[Mesh]:
    """Two ranks in this process, whose CPU has graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECORDERS, "cpu", RawGraph)
        patch.setenv("MONARCH_HPC_TENSOR__GRAPH_LEAST_OPS", "1")
        with local_mesh(dp=2) as procs:
            yield Mesh(procs=procs, commit=False)


@pytest.fixture
def mesh(procs: ProcMesh) -> Iterator[Mesh]:
    """See `graphed_mesh`; *procs* have started what this process keeps."""
    with graphed_mesh() as mesh:
        yield mesh


@pytest.mark.parametrize("name", NETWORKS)
def test_a_training_has_the_same_bits(mesh: Mesh, name: str) -> None:
    as_written, _ = train(mesh, name, lambda step: step, 14)
    num = RawGraph.num_replays
    graphed, run = train(mesh, name, lambda step: mesh.capture(step, graphs=True), 14)
    assert as_written == graphed
    # Others may run as operators, where the allocator has moved what they get.
    assert all(reason in why for why in lowering(run) for reason in TOLD[name]), run.lowering()
    assert RawGraph.num_replays - num >= 2 * 5  # of two ranks, from the tenth step on


@hypothesis.settings(max_examples=25)
@hypothesis.given(steps=STEPS, weight=st.sampled_from(["dp", None]), data=st.sampled_from(["dp", None]))
def test_a_random_step_has_the_same_bits(
    procs: ProcMesh, steps: list[tuple[str, int, int]], weight: str | None, data: str | None
) -> None:
    found = []
    num = RawGraph.num_replays
    with graphed_mesh() as mesh:
        for capture in (False, True):
            torch.manual_seed(1)
            leaf = distribute(torch.randn(4, 4), mesh, [weight] if weight else []).requires_grad_()
            buffer = distribute(torch.randn(4, 4), mesh, [])
            step = random_step(steps, leaf, buffer)
            run = mesh.capture(step, graphs=True) if capture else step
            outs = []
            for _ in range(NUM_CALLS):
                outs.append(run(distribute(torch.randn(4, 4), mesh, [data] if data else [])))
            found.append(bits([*outs, leaf, buffer]))
    assert found[0] == found[1], steps
    hypothesis.event(f"replays: {RawGraph.num_replays - num}")


def test_gradients_add_up_and_results_that_are_kept_stay(mesh: Mesh) -> None:
    found = []
    for capture in (False, True):
        weight = distribute(torch.arange(16.0).reshape(4, 4), mesh, []).requires_grad_()

        def accumulate(x: Any, weight: Any = weight) -> Any:
            loss = (x @ weight).square()
            loss.sum().backward()
            return loss.detach() + 0, (x + 1).sum()

        run = mesh.capture(accumulate, graphs=True) if capture else accumulate
        outs, grads = [], []
        for turn in range(2 * NUM_CALLS):
            outs += run(distribute(torch.ones(4, 4) / (turn + 3), mesh, ["dp"]))
            if turn > NUM_CALLS:
                grads.append(weight.grad.clone())
                if turn % 3 == 0:
                    weight.grad = None
        found.append(bits([*outs, *grads]))
    assert found[0] == found[1]


def test_a_parameter_that_is_replaced_is_used(mesh: Mesh) -> None:
    found = []
    for capture in (False, True):
        torch.manual_seed(0)
        weights = [distribute(torch.randn(4, 4), mesh, []) for _ in range(3)]

        def step(x: Any, weight: Any) -> Any:
            weight.mul_(0.5).add_(x.mean())
            return x @ weight

        run = mesh.capture(step, graphs=True) if capture else step
        x = distribute(torch.randn(8, 4), mesh, ["dp"])
        outs = [run(x, weights[turn // 10 % 3]) for turn in range(40)]
        found.append(bits([*outs, *weights]))
    assert found[0] == found[1]


def test_a_failure_in_the_middle_spoils_what_its_graph_would_have_made(mesh: Mesh) -> None:
    x: Any = distribute(torch.ones(4, 4), mesh, [])
    buffer: Any = distribute(torch.ones(4, 4), mesh, [])
    table = distribute(torch.ones(4, 4), mesh, []).requires_grad_()

    def add(x: Any) -> tuple[Any, Any]:
        first = x + 1
        buffer.add_(first)
        table.grad = None
        (x @ table).square().sum().backward()
        return first * 2, x * 3

    step = mesh.capture(add, graphs=True)
    for _ in range(NUM_CALLS):
        kept = step(x)
    assert lowering(step) == {""}
    RawGraph.num_failing = 2  # on both ranks
    spoilt = step(x)
    grad: Any = table.grad
    for one in (spoilt[0], spoilt[1], buffer, grad):
        with pytest.raises(RemoteOpError, match="the device is lost"):
            one.full_tensor()
    assert kept[0].full_tensor().unique().tolist() == [4.0]
    buffer = distribute(torch.zeros(4, 4), mesh, [])
    found = [step(x)[0].full_tensor().unique().tolist() for _ in range(NUM_CALLS)]
    assert found == [[4.0]] * NUM_CALLS and buffer.full_tensor().unique().tolist() == [2.0 * NUM_CALLS]


def test_graphs_are_made_of_what_runs_below_dtensor_on_a_device_that_has_them(mesh: Mesh) -> None:
    with pytest.raises(ValueError, match="graphs=True with lower=False"):
        mesh.capture(lambda x: x, lower=False, graphs=True)
    x = distribute(torch.ones(4), mesh, [])
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(RECORDERS, "cpu")
        run = mesh.capture(lambda x: x + 1, graphs=True)
        for _ in range(NUM_CALLS):
            run(x)
        assert lowering(run) == {"1 of 1 operators are not in graphs: 1 tensors on cpu"}


class Graphed(Actor):
    """Has the CPU of its proc have graphs."""

    @endpoint
    def begin(self) -> None:
        """From now on."""
        RECORDERS["cpu"] = RawGraph

    @endpoint
    def num_replays(self) -> int:
        """The number of replays."""
        return RawGraph.num_replays


def test_a_death_among_graphs_is_healed_exactly(grid_of_its_own: ProcMesh) -> None:
    num, at = 18, 14
    mesh = Mesh(procs=grid_of_its_own)
    graphed = grid_of_its_own.spawn("graphed", Graphed)
    graphed.begin.call().get(60)
    undisturbed = GridTraining(mesh, num)
    expected = [undisturbed.step(*batch) for batch in undisturbed.batches]
    training = GridTraining(mesh, num, captured=True)
    training.on_ranks = mesh.capture(training._on_ranks, graphs=True)

    def check() -> None:
        assert all(graphed.num_replays.call().get(60).values())

    lose_a_rank(mesh, training, at, check, undisturbed, expected)
