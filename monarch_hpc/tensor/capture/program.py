"""Makes a program of two equal recordings: one record replays it, and the program's own state moves along."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from time import monotonic
from typing import Any

import torch

from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.tensor.capture.guards import Guards, Reached
from monarch_hpc.tensor.capture.optimizers import OptimizerState, optimizer_spec
from monarch_hpc.tensor.capture.recorder import StepRecording
from monarch_hpc.tensor.capture.recording import CannotCapture, difference_of
from monarch_hpc.tensor.capture.results import Results
from monarch_hpc.tensor.ops.dispatch import put
from monarch_hpc.tensor.ops.meta import GraphLeaf
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.reading import check_readable
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.frames import Moment
from monarch_hpc.tensor.stream.records import BACKWARD, FREE, OPTIMIZER_STEP, GraphLimits, OptimizerSpec, ProgramSpec
from monarch_hpc.tensor.stream.sites import Site, line_of

__all__ = ["CapturedProgram", "check_alike"]

_MAX_KEPT_DEAD = 4
"""Values that may wait for the next record that frees, as of operations that are issued one by one."""


def check_alike(before: StepRecording, after: StepRecording) -> None:
    """Check that two recordings do the same.

    Raises:
        CannotCapture: they differ.
    """
    difference = difference_of(before.ops, after.ops)
    if difference:
        raise CannotCapture(difference, is_final=False)
    if [id(one) for one in before.sources] != [id(one) for one in after.sources]:
        raise CannotCapture("it computes a tensor of the program, and sends it: pass it as an argument", is_final=False)
    for one, other in zip(before.specs, after.specs, strict=True):
        if (one.name, one.floats, _shape(one)) != (other.name, other.floats, _shape(other)):
            raise CannotCapture("an optimizer has changed between two calls", is_final=False)
    if {number: had for number, (_, had) in before.leaves.items() if number in before.externals} != {
        number: had for number, (_, had) in after.leaves.items() if number in after.externals
    }:
        raise CannotCapture("parameters have gradients before one call, and none before another", is_final=False)


def _shape(spec: OptimizerSpec) -> Any:
    varying = {(group, name) for group, name, _ in spec.floats}
    groups = [
        (numbers, {name: value for name, value in options.items() if (place, name) not in varying})
        for place, (numbers, options) in enumerate(spec.groups)
    ]
    return groups, [state.keys() for state in spec.state]


class CapturedProgram:
    """A program that the ranks replay.

    Attributes:
        ops: what it was made of.
        sites: the lines of its operations.

    Args:
        view: the ranks.
        recording: what a call has issued, right after it.
        results: its result.
        num_formals: number of mesh tensors among its arguments.
        reached: what the function reaches.
        volatile: see `Guards`.
        replaced: see `Guards`.
        lowers: whether ranks may replay it below DTensor.
        graphs: whether they are to replay it by graphs there.

    Raises:
        CannotCapture: it cannot be replayed.
    """

    def __init__(
        self,
        view: View,
        recording: StepRecording,
        results: Results,
        num_formals: int,
        reached: Reached,
        volatile: set[tuple[int, Any]],
        replaced: set[Any],
        lowers: bool,
        graphs: bool,
    ) -> None:
        missing = [site for number, site in recording.externals.items() if number not in reached.tensors]
        if missing:
            raise CannotCapture(
                "a tensor is not an argument, and cannot be reached from the function, its closure or globals: it is "
                f"used at {line_of(missing[0])}",
                is_final=False,
            )
        self._view = view
        self._results = results
        self._sources = recording.sources
        self._optimizers: list[OptimizerState] = []
        specs = []
        for optimizer, before in zip(recording.optimizers, recording.specs, strict=True):
            after = optimizer_spec(optimizer, (), {}, view)
            if after.groups != before.groups:
                raise CannotCapture("it changes options of its optimizer: call schedulers outside of the step")
            specs.append(after)
            self._optimizers.append(OptimizerState(optimizer, after, before))
        if len({id(optimizer) for optimizer in recording.optimizers}) < len(specs):
            raise CannotCapture("an optimizer takes several steps in one call")
        self._hosted = reached.hosted
        hosted = [one for one in reached.optimizers if one in reached.hosted]
        options = {id(group) for optimizer in (*recording.optimizers, *hosted) for group in optimizer.param_groups}
        skipped = {key for key, (edge, _) in reached.scalars.items() if id(edge[1]) in options}
        self._guards = Guards(reached, recording.externals, volatile | skipped, replaced)
        self._leaves = [
            (leaf, had, leaf.has_grad)
            for number, (leaf, had) in recording.leaves.items()
            if number in recording.externals
        ]
        if recording.leaves.keys() - recording.externals.keys() - recording.own.keys():
            raise CannotCapture("it computes gradients of its arguments: reach them by its closure, or detach() them")
        self._commits = _commits_on(view)
        config = view.engine.config
        limits = GraphLimits(config.graph_least_ops, config.graph_captures) if graphs else None
        self._spec, self.sites = _compile(recording, num_formals, specs, limits, commits=self._commits, lowers=lowers)
        self._num_changes = recording.num_changes
        self._steps = self._steps_of(recording)
        self.ops = recording.ops
        self._key = object()
        self._epoch = view.engine.epoch
        self._issued = Moment(-1, 0.0)

    def _steps_of(self, recording: StepRecording) -> list[list[GraphLeaf] | torch.optim.Optimizer]:
        """What a replay does for versions, see `Versions.note_replay`."""
        graded = [leaf for leaf, _, has_grad in self._leaves if has_grad]
        return [
            graded if op.ints[0] == BACKWARD else recording.optimizers[op.ints[1]]
            for op in recording.ops
            if op.ints[0] in (BACKWARD, OPTIMIZER_STEP)
        ]

    @property
    def num_ops(self) -> int:
        """The number of operations that a replay stands for."""
        return self._spec.num_ops

    def holds(self) -> bool:
        """Whether a replay does what the function would do."""
        with torch._C.DisableTorchFunction():  # a mode would see each question to a tensor
            return (
                self._epoch == self._view.engine.epoch  # no heal has ended it
                and self._commits is _commits_on(self._view)
                and self._guards.hold()
                and all(leaf.has_grad is had for leaf, had, _ in self._leaves)
                and all(optimizer.is_unchanged() for optimizer in self._optimizers)
            )

    def replay(self, given: Sequence[MeshTensor]) -> Any:
        """Issue a replay; return its result.

        Args:
            given: the mesh tensors among the arguments.
        """
        view = self._view
        engine = view.engine
        for one in self._hosted:
            one.send_changes()
        numbers = [tensor._h.number for tensor in given]
        sent = [put(source, view) for source in self._sources]
        numbers += [tensor._h.number for tensor in sent]
        for optimizer in self._optimizers:
            numbers += optimizer.floats()
        spec = self._spec
        with engine.lock:
            template = engine.template(self._key, lambda: spec, view)
            recovery = engine.recovery if self._commits else None
            if recovery is not None:
                recovery.note_optimizers([step for step in self._steps if not isinstance(step, list)])
            first = engine.emit(view, [template, -1, *numbers], spec.num_values, sites=self.sites)
            if recovery is not None:
                recovery.note_replay(self._steps, self._num_changes)
            if not self._issued.precedes(engine.last_read, engine.config.flush_s):
                engine.flush()  # else a read came next the last time: the next one takes this along, or `flush_s` ends
            self._issued = Moment(engine.num_issued, monotonic())
        for leaf, _, has_grad in self._leaves:
            leaf.has_grad, leaf.grad = has_grad, None
        for optimizer in self._optimizers:
            optimizer.advance()
        return self._results.made(first, view, given)

    def lowering(self) -> ValueMesh[str]:
        """See `Captured.lowering`."""
        view, engine = self._view, self._view.engine
        check_readable(view)
        with engine.lock:
            template = engine.template(self._key, lambda: self._spec, view)
            engine.flush()
        whole = type(view.region).whole(view.region.extent)
        found: list[str] = view.workers.lowering.fold(list, template).get()
        return ValueMesh(whole, found)

    def reset_gradients(self) -> None:
        """Have the program read gradients again, as a replay does."""
        for leaf, _, _ in self._leaves:
            leaf.grad = None

    def follow(self) -> None:
        """Note that the function has run as written, and so has moved its optimizers on."""
        for optimizer in self._optimizers:
            optimizer.follow()

    def forget(self) -> None:
        """Have the ranks forget it."""
        view, engine = self._view, self._view.engine
        if self._epoch != engine.epoch:
            return
        with engine.lock:
            template = engine.template(self._key, lambda: self._spec, view)
            engine.emit(view, [template, 0, *[0] * (self._spec.num_formals + self._spec.num_floats)])
            engine.flush()
            engine.templates.forget(self._key)


def _commits_on(view: View) -> bool:
    """Whether steps on the ranks of a view are versions."""
    recovery = view.engine.recovery
    return recovery is not None and recovery.covers(view)


def _compile(
    recording: StepRecording,
    num_formals: int,
    specs: list[OptimizerSpec],
    limits: GraphLimits | None,
    *,
    commits: bool,
    lowers: bool,
) -> tuple[ProgramSpec, tuple[Site, ...]]:
    """The program of a recording, which frees each value after its last use, and its lines."""
    kept = {recording.own[number] for number in recording.kept}
    last: dict[int, int] = {}
    for at, op in enumerate(recording.ops):
        for value in (*op.makes, *(op.ints[place] for place in op.own)):
            last[value] = at
    dying: dict[int, list[int]] = {}
    for value, at in last.items():
        if value not in kept:
            dying.setdefault(at, []).append(value)
    ints: list[int] = []
    own: list[int] = []
    formals: list[tuple[int, int]] = []
    objects: list[Any] = []
    dead: list[int] = []
    for at, op in enumerate(recording.ops):
        begin = len(ints)
        ints += op.ints
        own += [begin + place for place in op.own]
        formals += [(begin + place, formal) for place, formal in op.formals]
        if op.obj_at:
            ints[begin + op.obj_at] = len(objects)
            objects.append(op.obj)
        dead += dying.get(at, ())
        if len(dead) >= _MAX_KEPT_DEAD or (dead and at == len(recording.ops) - 1):
            own += range(len(ints) + 2, len(ints) + 2 + len(dead))
            ints += (FREE, len(dead), *dead)
            dead = []
    spec = ProgramSpec(
        array("q", ints).tobytes(),
        tuple(own),
        tuple(formals),
        num_formals + len(recording.sources),
        sum(len(one.floats) for one in specs),
        recording.num_values,
        len(recording.ops),
        tuple(objects),
        tuple(specs),
        commits,
        lowers,
        limits,
    )
    return spec, tuple(op.site for op in recording.ops)
