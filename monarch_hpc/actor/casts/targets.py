"""The targets of a process's casts, and its casts in flight."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field

from monarch_hpc.actor.casts.route import CastRoute
from monarch_hpc.actor.messages.incarnations import CurrentProcs
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.casts import Spans, Target, pack_target, spans_of
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["Answered", "CastMessage", "CastRecord", "CastTarget", "CastTargets", "Delivery", "OpenCast", "Reduce"]

_MAX_TARGETS = 64
"""Number of slices cached with their hosts and ranks: enough for the slices of a loop."""

Answered = Callable[[int, Frame | MonarchError], None]
"""Called once for each place, with its RESULT or FAILURE frame, or with the error that explains the missing answer."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """How the answers to a cast are combined on the way.

    Attributes:
        functions: see `actor.casts.reduction.Folding.pack`.
        take: called with adjacent places and their combined answer; or with any places and None, if their answers were
            dropped because the call fails. Each place is passed once, either here or to the cast's `Answered`.
    """

    functions: bytes
    take: Callable[[Iterable[int], Frame | None], None]


@dataclass(frozen=True, slots=True)
class CastRecord:
    """Fields of a cast's telemetry record.

    Attributes:
        mark: mark of the calling actor, see `telemetry.recorder`.
        name: number of the endpoint's name, see `telemetry.names`.
    """

    mark: int
    name: int


@dataclass(frozen=True, slots=True)
class CastMessage:
    """One message for many procs."""

    kind: Kind
    actor: int
    body: bytes = b""
    buffers: Sequence[Buffer] = ()


@dataclass(frozen=True, slots=True)
class Delivery:
    """How a cast is delivered.

    Attributes:
        where: describes the callee at a place.
        answer: called once for each place with its outcome; None for a message without answers.
        end_s: the caller's deadline, on the engine's clock; None if there is none.
        reduce: how agents may combine the answers of adjacent places; None if they must not.
        record: caller and endpoint, for the telemetry records; only for a call with answers.
    """

    where: Callable[[int], str]
    answer: Answered | None
    end_s: float | None = None
    reduce: Reduce | None = None
    record: CastRecord | None = None


@dataclass(slots=True, eq=False)
class CastTarget:
    """A set of procs that casts go to.

    Attributes:
        packed: the serialized `wire.casts.Target`.
        hosts: ranks of their hosts.
        chosen: its procs, by place in the region, as they were at the first of these casts.
        places: place in the region, by incarnation.
        in_blocks: whether the places of each host are adjacent.
        last: number of the last cast to this target.
        num_open: number of casts that some of the procs may not have handled.
    """

    region: Region
    chosen: Sequence[ProcRef]
    packed: bytes
    hosts: Spans
    places: dict[int, int]
    in_blocks: bool
    last: int = 0
    num_open: int = 0

    def proc(self, place: int) -> ProcRef:
        """The proc at a place of the region."""
        return self.chosen[place]


@dataclass(slots=True, eq=False)
class OpenCast:
    """A cast that some callee has not answered or not handled.

    Attributes:
        route: the way that it takes.
        cost: the credit that it takes.
        where: describes the callee at a place.
        answer: takes the answers; None for a message without answers.
        reduce: takes combined answers; None if they are not combined.
        limited: whether the call has a deadline, see `actor.cell.cancellation.LIMITED`.
        channel: that to the agent; None before it is sent.
        held: whether it was never sent, because a mailbox was full until the deadline.
        record: see `Delivery`; None once the end of the call is recorded.
        left: places whose answer is missing.
        elsewhere: places in *left* whose outcome arrives by another path than a note.
        failed: whether some callee has answered with an exception, or never will answer.
        done: whether every callee has handled the cast, or never will.
    """

    route: CastRoute
    target: CastTarget
    number: int
    actor: int
    cost: int
    where: Callable[[int], str]
    answer: Answered | None
    reduce: Reduce | None = None
    limited: bool = False
    record: CastRecord | None = None
    channel: FrameChannel | None = None
    held: bool = False
    left: set[int] = field(default_factory=set)
    elsewhere: set[int] = field(default_factory=set)
    failed: bool = False
    done: bool = False

    @property
    def call(self) -> int:
        """The call number in the records; 0 if the cast was not sent."""
        return CAST | self.number if self.number else 0

    def record_sent(self, recorder: Recorder, num_bytes: int) -> None:
        """Record that the cast is sent."""
        if self.record is not None:
            num = len(self.target.region)
            recorder.sent(self.call, self.record.mark, self.record.name, num, num_bytes, self.actor)

    def record_answered(self, recorder: Recorder) -> None:
        """Record, once, that every callee has answered or never will."""
        if self.record is not None:
            self.record = None
            (recorder.failed if self.failed else recorder.answered)(self.call)


class CastTargets:
    """The cache of a process's cast targets; for any thread."""

    def __init__(self) -> None:
        self._targets: dict[object, CastTarget] = {}

    def of(self, run: str, region: Region, procs: Mapping[int, ProcRef]) -> CastTarget | None:
        """The target for *region*; None unless its procs are of one mesh on the hosts of *run*, in its own order."""
        if region.picks is not None:
            return None
        some = procs[region.base_rank(0)]
        # The lives too: a cast is for the procs that its sender knows, and reaches none that has replaced one of them.
        known = procs.lives if isinstance(procs, CurrentProcs) else CurrentProcs(procs).lives
        key = some.incarnation, region.offset, region.extent.shape, region.strides, tuple(known.items())
        target = self._targets.pop(key, None)
        if target is not None:
            self._targets[key] = target  # most recently used
            return target
        chosen = [procs[rank] for rank in region.base_ranks()]
        if any(proc.mesh != some.mesh or proc.host_rank < 0 for proc in chosen):
            return None
        if len(self._targets) >= _MAX_TARGETS:
            for old in [old for old, one in list(self._targets.items()) if not one.num_open][: _MAX_TARGETS // 2]:
                self._targets.pop(old, None)
        target = CastTarget(
            region,
            chosen,
            pack_target(Target(run, some.mesh, region, {proc.rank: proc.restarts for proc in chosen if proc.restarts})),
            spans_of(proc.host_rank for proc in chosen),
            {proc.incarnation: place for place, proc in enumerate(chosen)},
            _in_blocks([proc.host_rank for proc in chosen]),
        )
        return self._targets.setdefault(key, target)

    def last_to(self, incarnation: int) -> int:
        """Number of the last cast to a proc that may still be in flight; 0 if there is none."""
        last = 0
        for target in list(self._targets.values()):
            if target.num_open and target.last > last and incarnation in target.places:
                last = target.last
        return last


def _in_blocks(hosts: Sequence[int]) -> bool:
    changes = sum(before != after for before, after in itertools.pairwise(hosts))
    return changes == len(set(hosts)) - 1
