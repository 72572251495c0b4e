"""Records what a step issues while it runs: frames, leaves of autograd, tensors that are sent, optimizers' steps."""

from __future__ import annotations

import gc
from typing import Any, NoReturn, Self

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from monarch_hpc.tensor.capture.optimizers import optimizer_spec
from monarch_hpc.tensor.capture.recording import CannotCapture, IssuedOp, Normalizer, OptimizerMark
from monarch_hpc.tensor.ops.meta import GraphLeaf
from monarch_hpc.tensor.stream.capture_notes import ENGINES
from monarch_hpc.tensor.stream.engine import TensorEngine, View
from monarch_hpc.tensor.stream.sites import Site, line_of, site_here

__all__ = ["StepRecorder", "StepRecording"]


class StepRecording:
    """A run of a step.

    Attributes:
        ops: its records.
        num_values: number of values that it made.
        kept: numbers of those that the program still holds.
        own: places of own values by number.
        externals: the lines that use other values, by number.
        sources: tensors of the program that it sends.
        leaves: leaves of autograd by number, and whether each had a gradient at the begin.
        optimizers: those that took steps.
        specs: their descriptions before the steps.
        num_changes: number of its writes to what is older, see `Versions.num_changes`.
    """

    def __init__(self, found: Normalizer, kept: set[int], recorder: StepRecorder) -> None:
        self.ops: list[IssuedOp] = found.ops
        self.own = found.own
        self.num_values = len(found.own)
        self.kept = kept
        self.externals = found.externals
        self.sources = recorder.sources
        self.leaves = recorder.leaves
        self.optimizers = recorder.optimizers
        self.specs = [mark.spec for mark in recorder.marks]
        self.num_changes = recorder.num_changes


class StepRecorder:
    """While it is entered, what the program issues on an engine is recorded, and no other thread issues.

    Args:
        view: the ranks of the step.
        formals: numbers of its arguments.

    Attributes:
        leaves: leaves of autograd that were noted, with whether they had a gradient then.
        marks: steps of optimizers.
        optimizers: the optimizers, one for each mark.
        sources: tensors of the program that were sent.
        num_changes: see `StepRecording`; after it was left.
    """

    def __init__(self, view: View, formals: list[int]) -> None:
        self.leaves: dict[int, tuple[GraphLeaf, bool]] = {}
        self.marks: list[OptimizerMark] = []
        self.optimizers: list[torch.optim.Optimizer] = []
        self.sources: list[torch.Tensor] = []
        self._view = view
        self._formals = formals
        self._frames: list[tuple[View, list[int], list[Any], list[Site]]] = []
        self._sent: list[tuple[int, torch.Tensor, int, bool]] = []
        self._begun: tuple[int, Any] | None = None
        self._refusal: CannotCapture | None = None
        self._hooks: list[Any] = []
        self._base = 0
        self._changes_before = self.num_changes = 0
        self._others: list[tuple[TensorEngine, int]] = []

    def __enter__(self) -> Self:
        engine = self._view.engine
        engine.lock.acquire()
        try:
            engine.flush()
        except BaseException:
            engine.lock.release()
            raise
        self._base = engine.next_value
        self._changes_before = self._num_changes()
        self._others = [(one, one.num_issued) for one in ENGINES if one is not engine]
        engine.recorder = self
        self._hooks = [
            register_optimizer_step_pre_hook(self._begin_step),
            register_optimizer_step_post_hook(self._end_step),
        ]
        return self

    def __exit__(self, *_exc: object) -> None:
        engine = self._view.engine
        for hook in self._hooks:
            hook.remove()
        self.num_changes = self._num_changes() - self._changes_before
        try:
            engine.flush()
        finally:
            engine.recorder = None
            engine.lock.release()

    def _num_changes(self) -> int:
        recovery = self._view.engine.recovery
        return 0 if recovery is None else recovery.num_changes

    # ---- notes ----

    def add(self, view: View, ints: list[int], objects: list[Any], sites: list[Site]) -> None:
        """Take a frame; see `FrameRecorder`."""
        self._frames.append((view, ints, objects, sites))

    def note_leaf(self, leaf: GraphLeaf) -> None:
        """Note a leaf of autograd's graph; see `FrameRecorder`."""
        self.leaves.setdefault(leaf.number, (leaf, leaf.has_grad))

    def note_sent(self, number: int, source: torch.Tensor, is_constant: bool) -> None:
        """Note a tensor that was sent; see `FrameRecorder`."""
        self._sent.append((number, source, source._version, is_constant))

    def refuse_read(self) -> NoReturn:
        """Refuse to read a value; see `FrameRecorder`."""
        raise TypeError(
            "a value is read in a captured step, whose replays would not read it: return the tensor, and read it after "
            "the step; a condition on values is torch.where(...)"
        )

    def _begin_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if hasattr(optimizer, "send_changes"):  # it lives on the ranks
            return
        try:
            spec = optimizer_spec(optimizer, args[1:], kwargs, self._view)
        except CannotCapture as refusal:
            self._refusal = self._refusal or refusal
            return
        self._view.engine.flush()
        self._begun = len(self._frames), spec

    def _end_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._begun is None:
            return
        self._view.engine.flush()
        begin, spec = self._begun
        self._begun = None
        self.marks.append(OptimizerMark(begin, len(self._frames), spec, site_here(2)))
        self.optimizers.append(optimizer)

    # ---- the recording ----

    def recording(self, kept_by: Any) -> StepRecording:
        """What was recorded.

        Args:
            kept_by: the mesh tensors in the result.

        Raises:
            CannotCapture: it cannot be replayed.
        """
        if self._refusal is not None:
            raise self._refusal
        if any(one.num_issued != before for one, before in self._others):
            raise CannotCapture("tensors of other procs are used meanwhile", is_final=False)
        formals = {number: place for place, number in enumerate(self._formals)}
        self._place_sent(formals)
        found = Normalizer(self._view.engine, self._view, self._base, formals)
        marks = iter(self.marks)
        mark = next(marks, None)
        for place, frame in enumerate(self._frames):
            inside = mark is not None and mark.begin <= place < mark.end
            found.add(*frame, is_step=inside)
            while mark is not None and place == mark.end - 1:
                found.step(self.marks.index(mark), mark)
                mark = next(marks, None)
        if mark is not None:
            raise CannotCapture(f"an optimizer has done nothing, at {line_of(mark.site)}", is_final=False)
        numbers = {tensor._h.number for tensor in kept_by}
        cached = {leaf.grad._h.number for leaf, _ in self.leaves.values() if leaf.grad is not None}
        alive = set(found.own) - found.freed - cached - numbers
        if alive - set(self._view.dead):
            gc.collect()  # some may be parts of cycles
        if alive - set(self._view.dead):
            raise CannotCapture("it keeps a mesh tensor that it has made, beside its result", is_final=False)
        return StepRecording(found, numbers & set(found.own), self)

    def _place_sent(self, formals: dict[int, int]) -> None:
        """Make the tensors of the program that the step has sent arguments, which each replay sends anew."""
        for number, source, version, is_constant in self._sent:
            if is_constant:
                continue
            if source.requires_grad:
                raise CannotCapture("it sends a tensor of the program that requires a gradient")
            if source._version != version:
                raise CannotCapture("it sends a tensor of the program, and changes it afterwards")
            formals[number] = len(self._formals) + len(self.sources)
            self.sources.append(source)
