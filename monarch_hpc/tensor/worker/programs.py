"""Captured steps on one rank: their records with the numbers of each replay, and the optimizers that step in them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any, NamedTuple

import torch

from monarch_hpc.tensor.stream.records import OPTIMIZER_STEP, OptimizerSpec, ProgramSpec, Ref, float_of
from monarch_hpc.tensor.worker.foreach import steps_at_once
from monarch_hpc.tensor.worker.sharded.modes import WithoutModes
from monarch_hpc.tensor.worker.values import Failure, Values

__all__ = ["ReplayReports", "ReplayedProgram", "SteppedOptimizer", "SteppedUpdate"]


class ReplayReports(NamedTuple):
    """What the executor of records is told by who executes operations in its place.

    Attributes:
        begin: an operation begins: sequence number, name.
        fail: one has failed: sequence number, error, name, numbers of results, numbers of what it writes to.
        is_over: tells whether nothing more is to be executed.
    """

    begin: Callable[[int, str], None]
    fail: Callable[[int, BaseException, str, Sequence[int], Sequence[int]], None]
    is_over: Callable[[], bool]


class ReplayedProgram:
    """A captured step.

    Attributes:
        ints: its records.
        own: positions among them of numbers that are counted from the first value that it makes.
        formals: positions of arguments, and the place of each.
        floats: the floats for optimizers of the replay under way.
        objects: what its records refer to.
        optimizers: those that take steps.
        commits: whether each step of one is a commit.
        lowers: whether it may be replayed below DTensor.
        graphs: limits of graphs of what runs there; None if there are to be none.
        mark: number of the first value that is younger than the replay under way.
        replays: how it runs on sharded tensors; None before the first time.
    """

    def __init__(self, spec: ProgramSpec) -> None:
        self.ints = array("q", spec.ints).tolist()
        self.own = spec.own
        self.formals = spec.formals
        self.num_formals = spec.num_formals
        self.num_floats = spec.num_floats
        self.num_values = spec.num_values
        self.num_ops = spec.num_ops
        self.objects = spec.objects
        self.commits = spec.commits
        self.lowers = spec.lowers
        self.graphs = spec.graphs
        self.mark = 0
        self.replays: Any = None
        self.floats: list[float] = []
        self.optimizers: list[SteppedOptimizer] = []
        begin = 0
        for one in spec.optimizers:
            self.optimizers.append(SteppedOptimizer(one, begin))
            begin += len(one.floats)

    def lowering(self) -> str:
        """Why replays are executed as recorded; empty if they run below DTensor, and by graphs if asked to."""
        if not self.lowers:
            return "it was asked not to (lower=False)"
        if self.replays is None:
            return "it was not replayed yet, or each rank has values of its own"
        return str(self.replays.lowering())

    def begin(self, first: int, given: list[int]) -> list[int]:
        """The records of a replay.

        Args:
            first: number of the first value that it makes.
            given: numbers of its arguments, then the bits of floats.
        """
        self.floats = [float_of(bits) for bits in given[self.num_formals :]]
        self.mark = first + self.num_values
        ints = self.ints.copy()
        for place in self.own:
            ints[place] += first
        for place, formal in self.formals:
            ints[place] = given[formal]
        return ints


class SteppedOptimizer:
    """An optimizer of torch over values of this rank; made at its first step.

    Args:
        spec: the optimizer.
        begin: place of its first float among those of a replay.

    Attributes:
        parameters: numbers of the parameters.
        written: numbers of the values that a step writes to.
    """

    def __init__(self, spec: OptimizerSpec, begin: int) -> None:
        self._spec = spec
        self._begin = begin
        self._optimizer: Any = None
        self._is_local = False
        self._used: dict[int, Any] = {}
        self._left_out: set[int] = set()
        self._locals: list[Any] = []
        self._held: list[tuple[dict[str, Any], str, int]] = []
        self.parameters = [number for numbers, _ in spec.groups for number in numbers]
        self._state = [
            (place, name, entry.number)
            for place, state in enumerate(spec.state)
            for name, entry in state.items()
            if isinstance(entry, Ref)
        ]
        self._steps = [
            {name: entry.clone() for name, entry in state.items() if isinstance(entry, torch.Tensor)}
            for state in spec.state
        ]
        self._written = [[number] for number in self.parameters]  # by parameter, with its state
        for place, _, number in self._state:
            self._written[place].append(number)
        self.written = (*self.parameters, *(number for _, _, number in self._state))

    def step(self, values: Values, floats: list[float], sharding: Any) -> None:
        """Take a step of all parameters but those that have failed, or whose gradients or state have.

        Args:
            values: of this rank.
            floats: those of the replay.
            sharding: how operators run; None where each rank has values of its own.
        """
        failed = self._failed(values) if values.num_failed or values.grads else {}
        if len(failed) < len(self.parameters):
            self._step(values, floats, sharding, failed)
        for place, root in failed.items():
            number = self.parameters[place]
            if number in values.grads or getattr(values.get(number), "grad", None) is not None:
                for count in self._steps[place].values():
                    count.add_(1.0)  # as the program's
                values.fail(root, (), self._written[place])

    def _step(self, values: Values, floats: list[float], sharding: Any, failed: Collection[int]) -> None:
        is_made = self._optimizer is not None and self._left_out <= set(failed)
        if not is_made or any(values.get(number) is not one for number, one in self._used.items()):
            self._optimizer = self._made(values, failed)
        groups = self._optimizer.param_groups
        for at, (group, option, place) in enumerate(self._spec.floats, self._begin):
            value = floats[at]
            if place < 0:
                groups[group][option] = value
            else:
                given = groups[group][option]
                groups[group][option] = (*given[:place], value, *given[place + 1 :])
        whole = [place for place in range(len(self.parameters)) if place not in failed]
        parameters = [values[self.parameters[place]] for place in whole]
        if sharding is not None:
            for place, parameter in zip(whole, parameters, strict=True):
                number, local = self.parameters[place], self._locals[place]
                grad = sharding.grad_of(number, values)
                if local is not parameter:
                    local.grad = None if grad is None else local_of(grad)
                elif parameter.grad is not grad:
                    raise RuntimeError("parameters of a module on the ranks step with a RemoteOptimizer")
        kept = [(local := self._locals[place], local.grad) for place in failed]
        for local, _ in kept:
            local.grad = None
        with WithoutModes() if self._is_local else nullcontext():
            self._optimizer.step()
        for state, name, number in self._held:
            if state.get(name) is not self._local(values[number]):
                raise RuntimeError(f"{self._spec.name} has replaced its {name!r}, which a captured step cannot follow")
        if self._is_local:
            for local in self._locals:
                local.grad = None
            torch.autograd.graph.increment_version(parameters)  # DTensors do not see what their shards go through
        else:
            for local, grad in kept:
                local.grad = grad

    def _failed(self, values: Values) -> dict[int, int]:
        """Places of parameters that cannot be stepped, and the operation that has failed."""
        found: dict[int, int] = {}
        for place, number in enumerate(self.parameters):
            if number in values.grads:
                found[place] = values.grads[number].root
        for place, numbers in enumerate(self._written):
            for number in numbers:
                if type(value := values.get(number)) is Failure:
                    found.setdefault(place, value.root)
        return found

    def _local(self, value: Any) -> Any:
        return local_of(value) if self._is_local else value

    def _made(self, values: Values, failed: Collection[int]) -> Any:
        """The optimizer; parameters that have failed are others there, which have no gradients."""
        self._left_out = set(failed)
        whole = [place for place in range(len(self.parameters)) if place not in failed]
        self._used = {number: values.get(number) for place in whole for number in self._written[place]}
        # Elementwise, so that steps on shards give the shards of a step.
        self._is_local = all(
            is_placed_alike(values[self.parameters[place]], values[number])
            for place in whole
            for number in self._written[place]
        )
        self._locals = [
            torch.zeros((), requires_grad=True) if place in failed else self._local(values[number])
            for place, number in enumerate(self.parameters)
        ]
        cls: Any = getattr(torch.optim, self._spec.name)
        left = iter(self._locals)
        groups = [{**options, "params": list(islice(left, len(numbers)))} for numbers, options in self._spec.groups]
        optimizer = cls(groups)
        for group in optimizer.param_groups:
            if self._is_local and steps_at_once(self._spec.name, group, group["params"]):
                group["foreach"] = True
        for place, state in enumerate(self._spec.state):
            if state and place not in failed:
                optimizer.state[self._locals[place]] = {
                    name: self._local(values[entry.number])
                    if isinstance(entry, Ref)
                    else self._steps[place].get(name, entry)
                    for name, entry in state.items()
                }
        self._held = [
            (optimizer.state[self._locals[place]], name, number)
            for place, name, number in self._state
            if place not in failed
        ]
        return optimizer


class SteppedUpdate:
    """One step of an optimizer of a captured step, as a part of a commit; attributes and methods as of `Update`.

    Args:
        optimizer: the optimizer.
        values: values of this rank.
        floats: those of the replay.
    """

    def __init__(self, optimizer: SteppedOptimizer, values: Values, floats: list[float]) -> None:
        self._optimizer = optimizer
        self._values = values
        self._floats = floats
        self.operations: tuple[int, ...] | None = (OPTIMIZER_STEP, *optimizer.written)
        self.leaves = optimizer.parameters

    def lacks(self) -> bool:
        """Whether it uses a value that could not be made."""
        return any(type(self._values.get(number)) is Failure for number in self._optimizer.written)

    def placements(self) -> list[Any]:
        """How the tensors are placed that it uses, and gradients, which must be summed before."""
        values = self._values
        found = [getattr(values.get(number), "_spec", None) for number in self._optimizer.written]
        return found + [getattr(values[leaf].grad, "_spec", None) for leaf in self.leaves]

    def apply(self, sharding: Any) -> None:
        """Take it; in the context of *sharding*."""
        self._optimizer.step(self._values, self._floats, sharding)


def is_placed_alike(one: Any, other: Any) -> bool:
    """Whether two sharded tensors are split in the same way, into parts and not into summands."""
    placements = getattr(one, "placements", None)
    if placements is None or any(placement.is_partial() for placement in placements):
        return False
    return bool(placements == getattr(other, "placements", None) and one.shape == other.shape)


def local_of(tensor: Any) -> Any:
    """This rank's shard of a sharded tensor, as it lies here."""
    return tensor._local_tensor
