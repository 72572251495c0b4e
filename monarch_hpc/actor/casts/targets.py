"""Whom a process casts to, and which of its casts are under way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import ActorError, MonarchError, TransportError
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.casts import Spans, Target, pack_target, spans_of
from monarch_hpc.wire.frames import Frame

__all__ = ["Answered", "CastRecord", "CastSenderProcess", "CastTarget", "CastTargets", "OpenCast", "Reduce"]

_MAX_TARGETS = 64
"""So many slices are remembered with their hosts and ranks; those of a loop, not of a day."""

Answered = Callable[[int, Frame | MonarchError], None]
"""Called with the place of a proc and its RESULT or FAILURE frame, or why there is none; once for each place."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """How the answers to a cast are combined on their way.

    Attributes:
        functions: see `actor.casts.reduction.Folding.pack`.
        take: called with places that follow each other and what their answers came to; or with any places, and None
            where what they answered goes nowhere, because the call fails. Each place is named once, here or to the
            `Answered` of the cast.
    """

    functions: bytes
    take: Callable[[Iterable[int], Frame | None], None]


@dataclass(frozen=True, slots=True)
class CastRecord:
    """What is recorded of a cast beside its number.

    Attributes:
        mark: of the actor that makes it, see `telemetry.recorder`.
        name: of the endpoint, see `telemetry.names`.
    """

    mark: int
    name: int


class CastSenderProcess(Protocol):
    """What a caster needs of its process."""

    engine: Engine
    info: ProcInfo
    recorder: Recorder

    @property
    def node(self) -> Node:
        """Its channels."""
        ...

    @property
    def own(self) -> ProcRef:
        """The process itself."""
        ...

    def on_failure(self) -> None:
        """A call has failed."""
        ...

    def line_to(self, proc: ProcRef) -> MessageLink:
        """The channel to a proc."""
        ...

    def explain(
        self, incarnation: int, where: str, error: TransportError, on_cause: Callable[[ActorError], None]
    ) -> None:
        """Say why a proc does not answer, now or when it is known."""
        ...

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: Callable[[ActorError], None]) -> None:
        """The same of a proc that is known to be dead."""
        ...


@dataclass(slots=True, eq=False)
class CastTarget:
    """Procs that are cast to together.

    Attributes:
        target: as it travels, see `wire.casts.Target`.
        hosts: where they are.
        places: by incarnation.
        in_blocks: the places of each host follow each other.
        last: number of the last cast to them.
        num_open: casts to them that some may not have handled.
    """

    region: Region
    procs: Mapping[int, ProcRef]
    packed: bytes
    hosts: Spans
    places: dict[int, int]
    in_blocks: bool
    last: int = 0
    num_open: int = 0

    def proc(self, place: int) -> ProcRef:
        """The proc at a place of the region."""
        return self.procs[self.region.base_rank(place)]


@dataclass(slots=True, eq=False)
class OpenCast:
    """A cast that is not answered and handled by all.

    Attributes:
        cost: its credit.
        where: the callee at a place, in words.
        answer: who takes the answers; None where there are none.
        reduce: who takes those that were combined; None where none are.
        limited: the callers of the actors give up at some time, see `actor.cell.cancellation.LIMITED`.
        held: it was not sent, because a mailbox was full until its callers gave up.
        record: see `Caster.cast`; None once it is recorded that all have answered.
        left: places whose answer is missing.
        elsewhere: those of them whose answer comes by another way than the notes.
        done: all have handled it, or never will.
    """

    target: CastTarget
    number: int
    actor: int
    cost: int
    where: Callable[[int], str]
    answer: Answered | None
    reduce: Reduce | None = None
    limited: bool = False
    record: CastRecord | None = None
    held: bool = False
    left: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    done: bool = False

    @property
    def call(self) -> int:
        """Its number among the calls of its process, as it is recorded; 0 where it was not sent."""
        return CAST | self.number if self.number else 0

    def record_sent(self, recorder: Recorder, num_bytes: int) -> None:
        """Record that it is sent."""
        if self.record is not None:
            recorder.sent(self.call, self.record.mark, self.record.name, 0, num_bytes, self.actor)

    def record_answered(self, recorder: Recorder) -> None:
        """Record that all have answered, or never will; once."""
        if self.record is not None:
            self.record = None
            recorder.answered(self.call)


class CastTargets:
    """The targets of one process; from any thread."""

    def __init__(self) -> None:
        self._targets: dict[object, CastTarget] = {}

    def of(self, run: str, region: Region, procs: Mapping[int, ProcRef]) -> CastTarget | None:
        """The target at *region*; None where its procs are not of one mesh of *run*'s hosts."""
        some = procs[region.base_rank(0)]
        key = some.incarnation, region.offset, region.extent.sizes, region.strides
        target = self._targets.pop(key, None)
        if target is not None:
            self._targets[key] = target  # the last to be forgotten
            return target
        chosen = [procs[rank] for rank in region.base_ranks()]
        if any(proc.mesh != some.mesh or proc.host_rank < 0 for proc in chosen):
            return None
        if len(self._targets) >= _MAX_TARGETS:
            for old in [old for old, one in list(self._targets.items()) if not one.num_open][: _MAX_TARGETS // 2]:
                self._targets.pop(old, None)
        target = CastTarget(
            region,
            procs,
            pack_target(Target(run, some.mesh, region)),
            spans_of(proc.host_rank for proc in chosen),
            {proc.incarnation: place for place, proc in enumerate(chosen)},
            _in_blocks([proc.host_rank for proc in chosen]),
        )
        return self._targets.setdefault(key, target)

    def last_to(self, incarnation: int) -> int:
        """Number of the last cast to a proc that it may not have had; 0 if there is none."""
        last = 0
        for target in list(self._targets.values()):
            if target.num_open and target.last > last and incarnation in target.places:
                last = target.last
        return last


def _in_blocks(hosts: Sequence[int]) -> bool:
    changes = sum(before != after for before, after in itertools.pairwise(hosts))
    return changes == len(set(hosts)) - 1
