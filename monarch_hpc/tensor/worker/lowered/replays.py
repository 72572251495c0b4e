"""Decides how a captured step is replayed on this rank: as it was recorded, or below DTensor and autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from monarch_hpc.tensor.worker.lowered.parts import Origin, StepPart, ValueSource, parts_of
from monarch_hpc.tensor.worker.lowered.recording import Replay, ReplayRecording, record
from monarch_hpc.tensor.worker.lowered.step import LoweredStep, check_alike
from monarch_hpc.tensor.worker.lowered.trace import CannotLower
from monarch_hpc.tensor.worker.programs import ReplayedProgram, ReplayReports
from monarch_hpc.tensor.worker.values import Failure

__all__ = ["Replays"]

_MAX_RECORDINGS = 6
"""Replays that may be recorded before two in a row were alike: the first ones work out shapes of operators."""


class Replays:
    """The replays of one step on this rank.

    Two that did the same are recorded, and further ones run below DTensor. Where that cannot be, or what the step uses
    has changed, its records are executed.

    Args:
        program: the step.
        templates: of this rank.
        size_of: see `parts_of`.
        reports: see `LoweredStep`.

    Attributes:
        reason: why replays run as recorded; empty if they do not, or are still recorded.
    """

    def __init__(
        self,
        program: ReplayedProgram,
        templates: Mapping[int, Any],
        size_of: Callable[[list[int], int], tuple[int, int]],
        reports: ReplayReports,
    ) -> None:
        self._reports = reports
        self._limits = program.graphs
        self._parts: list[StepPart] = []
        self._last: ReplayRecording | None = None
        self._lowered: LoweredStep | None = None
        self._num_recordings = 0
        self._leaves: set[ValueSource] = set()
        self._outside: set[ValueSource] = set()
        self.reason = ""
        try:
            self._parts = parts_of(program, templates, size_of)
            self._leaves = {leaf for part in self._parts for leaf in part.leaves}
            used = {source for part in self._parts for source in (*part.refs, *part.written)} | self._leaves
            self._outside = {source for source in used if source.of is not Origin.OWN}
        except CannotLower as refusal:
            self.reason, self._num_recordings = refusal.reason, _MAX_RECORDINGS

    def lowering(self) -> str:
        """Why further replays run otherwise than below DTensor, and by graphs if these were asked for; empty if not."""
        if self._lowered is not None:
            return self._lowered.graphs()
        return self.reason or "it was replayed too seldom"

    def run(self, replay: Replay) -> None:
        """Execute a replay."""
        if replay.sharding.counter is not None or not self._is_whole(replay):
            replay.run_all()
            return
        if self._lowered is not None:
            if self._lowered.holds(replay):
                self._lowered.run(replay)
                return
            self._lowered, self.reason = None, "what it uses from outside has changed"
        if self._num_recordings < _MAX_RECORDINGS:
            self._record(replay)
        else:
            replay.run_all()

    def _record(self, replay: Replay) -> None:
        self._num_recordings += 1
        last, self._last = self._last, None
        journal = replay.sharding.ops.journal
        failed = journal.failed
        try:
            self._last = record(self._parts, replay, lambda: journal.failed == failed and not self._reports.is_over())
            if last is not None:
                check_alike(last, self._last)
                self._lowered, self._last = LoweredStep(self._last, self._reports, self._limits), None
                self.reason = ""
        except CannotLower as refusal:
            self.reason = refusal.reason

    def _is_whole(self, replay: Replay) -> bool:
        """Whether none of the values that it uses, and of the gradients that it adds to, has failed."""
        values = replay.values
        if values.num_failed and any(type(replay.value(source)) is Failure for source in self._outside):
            return False
        return not values.grads or not any(replay.number(leaf) in values.grads for leaf in self._leaves)
