"""Simulates an allocation without I/O: the real routers of many agents in one process, which passes their frames on.

For benchmarks with more hosts than are available, and for tests that control the order of frames and the times of
deaths.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial

from monarch_hpc.agent.casts.router import Router
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.casts import (
    Cast,
    Note,
    NoteKind,
    Target,
    pack_cast,
    pack_notes,
    pack_target,
    parse_cast,
    parse_lost,
    parse_notes,
    spans_of,
)
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.reductions import content_of, pack_span, parse_order, span_of

__all__ = ["Sender", "SimProc", "SimulatedAllocation"]

_RUN = "feedbeef"
_MESH = 1
_MAX_FRAME_BYTES = 1 << 30
_PROC = 1 << 32  # incarnations of procs are their ranks beyond this
SENDER = 7
"""Incarnation of the sender of casts."""


@dataclass
class SimProc:
    """A simulated proc, which records and answers the casts that it receives.

    Attributes:
        number: by which its incarnation is made.
        restarts: number of earlier procs of its rank.
        seen: numbers of the received casts, in order.
        num_combined: how often it combined answers.
        fails: whether it answers with failures, and fails to combine.
    """

    rank: int
    host: int
    number: int
    restarts: int = 0
    num_combined: int = 0
    fails: bool = False
    seen: list[int] = field(default_factory=list)


@dataclass
class Sender:
    """A simulated program that casts, attached to host 0, with a record of all that it sent and received.

    Attributes:
        frames: number of frames sent and received.
        answers: kind of each rank's answer, by number of the cast.
        ended: kinds of final notes received, by number of the cast.
        parts: values of answers, combined or single, by their first place, by number of the cast.
        received_bytes: number of bytes received.
    """

    frames: Counter[str] = field(default_factory=Counter)
    number: int = 0
    answers: dict[int, dict[int, NoteKind]] = field(default_factory=dict)
    ended: dict[int, set[NoteKind]] = field(default_factory=dict)
    parts: dict[int, dict[int, bytes]] = field(default_factory=dict)
    received_bytes: int = 0

    def value(self, number: int) -> bytes:
        """The values of the answers to a cast, concatenated."""
        return b"".join(part for _, part in sorted(self.parts[number].items()))


class _Host:
    """The transport of one router."""

    def __init__(self, simulated: SimulatedAllocation, rank: int) -> None:
        self._fabric = simulated
        self._rank = rank

    def to_host(self, rank: int, frame: Frame) -> None:
        self._fabric.send(("host", self._rank, rank), frame)

    def to_proc(self, incarnation: int, frame: Frame) -> None:
        self._fabric.send(("proc", self._rank, incarnation - _PROC), frame)

    def to_upstream(self, upstream: int, frame: Frame) -> None:
        self._fabric.send(("up", self._rank, upstream), frame)

    def later(self, delay_s: float, callback: Callable[[], None]) -> object:
        return self._fabric.later(delay_s, self._rank, callback)

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        self._fabric.ends.append((self._rank, callback))


_Link = tuple[str, int, int]


class SimulatedAllocation:
    """*num_hosts* hosts with *per_host* procs each; `run` passes frames on.

    Args:
        chance: chooses the next of the links that have frames; None takes turns. Each link keeps its order.
        combine: combines answers, in procs.
    """

    def __init__(
        self,
        num_hosts: int,
        per_host: int,
        fanout: int,
        chance: random.Random | None = None,
        combine: Callable[[Iterable[bytes]], bytes] = b"".join,
    ) -> None:
        self.sender = Sender()
        self.hops = 0
        """Depth of the last cast: the number of successive links until the last host had it."""
        self.frames: Counter[int] = Counter()
        """Number of frames sent by each host."""
        self.procs = [SimProc(rank, rank // per_host, rank) for rank in range(num_hosts * per_host)]
        self.ends: list[tuple[int, Callable[[], None]]] = []
        self.dead: set[int] = set()
        self._per_host = per_host
        self._chance = chance
        self._combine = combine
        self._extent = Extent(("hosts", "gpus"), (num_hosts, per_host))
        self._links: dict[_Link, deque[Frame]] = {}
        self._turns: deque[_Link] = deque()
        self._held: dict[_Link, deque[Frame]] = {}
        self._regions: dict[int, Region] = {}
        self._depth: dict[int, int] = {}
        self._timers: list[tuple[float, int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_s = 0.0
        self.routers = [
            Router(rank, num_hosts, fanout, lambda _rank: True, _Host(self, rank), _MAX_FRAME_BYTES)
            for rank in range(num_hosts)
        ]
        for proc in self.procs:
            self.routers[proc.host].on_proc(_RUN, _MESH, proc.rank, _PROC + proc.rank)

    @property
    def region(self) -> Region:
        """All procs."""
        return Region.whole(self._extent)

    # ---- for tests ----

    def cast(
        self,
        region: Region | None = None,
        body: bytes = b"",
        *,
        reduced: bool = False,
        lives: Mapping[int, int] | None = None,
    ) -> int:
        """Send one call to the procs of *region*; return its number.

        Args:
            reduced: the answers, which are the ranks in four bytes, are combined on the way.
            lives: the restarts of the procs that it is for, by rank; the first procs where it has none.
        """
        region = region or self.region
        lives = lives or {}
        on = {(proc.rank, proc.restarts): proc.host for proc in self.procs}
        sender = self.sender
        sender.number += 1
        sender.answers[sender.number] = {}
        sender.ended[sender.number] = set()
        sender.parts[sender.number] = {}
        cast = Cast(
            kind=Kind.CALL,
            answered=True,
            limited=False,
            origin=SENDER,
            number=sender.number,
            root=0,
            low=0,
            high=0,
            target=pack_target(Target(_RUN, _MESH, region, lives)),
            hosts=spans_of({on[rank, lives.get(rank, 0)] for rank in region.base_ranks()}),
            waits=(),
            actor=1,
            body=body,
            functions=b"combine" if reduced else b"",
        )
        self._regions[sender.number] = region
        self.send(("enter", -1, 0), pack_cast(cast))
        sender.frames["sent"] += 1
        return sender.number

    def kill(self, host: int) -> None:
        """Kill a host: frames that it has sent may still arrive, frames sent to it do not."""
        self.dead.add(host)
        for link in [link for link in self._links if link[0] in ("host", "enter") and link[2] == host]:
            self._drop(link)
        for link in [link for link in self._links if link[0] == "proc" and link[1] == host]:
            self._drop(link)
        for rank, router in enumerate(self.routers):
            if rank not in self.dead:
                self.later(0.0, rank, partial(router.on_host_lost, host, "it was killed"))
                self.later(0.0, rank, partial(router.on_upstream_lost, host))

    def kill_proc(self, rank: int) -> None:
        """Kill a proc; its agent notices at once."""
        proc = self.procs[rank]
        self._drop(("proc", proc.host, rank))
        self.routers[proc.host].on_proc_ended(_RUN, _MESH, rank, "it was killed")

    def restart_proc(self, rank: int, host: int) -> SimProc:
        """Report a new proc on *host* as ready in place of a killed one; return it."""
        restarts = 1 + max(proc.restarts for proc in self.procs if proc.rank == rank)
        proc = SimProc(rank, host, len(self.procs), restarts)
        self.procs.append(proc)
        self.routers[host].on_proc(_RUN, _MESH, rank, _PROC + proc.number, restarts)
        return proc

    def end_restarted(self, proc: SimProc) -> None:
        """End a proc that `restart_proc` made."""
        self.routers[proc.host].on_proc_ended(_RUN, _MESH, proc.rank, "it was killed, too")

    def hold(self, link: _Link) -> None:
        """Hold back the frames on a link until `release`."""
        self._held[link] = self._links.pop(link)

    def release(self) -> None:
        """Let all held frames arrive."""
        for link, frames in self._held.items():
            self._links.setdefault(link, deque()).extendleft(reversed(frames))
            self._turns.extend([link] * len(frames))
        self._held = {}

    def run(self, num: int | None = None) -> None:
        """Pass on *num* frames, or all, and fire due timers in between."""
        while num is None or num > 0:
            self._end_turn()
            link = self._next()
            if link is None:
                if not self._timers:
                    return
                self._fire()
                continue
            frame = self._links[link].popleft()
            self._deliver(link, frame)
            if num is not None:
                num -= 1

    # ---- for the hosts ----

    def send(self, link: _Link, frame: Frame) -> None:
        """Put *frame* on a link."""
        kind, source, to = link
        if source >= 0:
            self.frames[source] += 1
        if (kind == "host" and to in self.dead) or source in self.dead:
            return
        self._links.setdefault(link, deque()).append(frame)
        self._turns.append(link)

    def later(self, delay_s: float, host: int, callback: Callable[[], None]) -> object:
        """Call *callback* after *delay_s*, unless *host* is dead by then."""
        heapq.heappush(self._timers, (self._now_s + delay_s, next(self._order), host, callback))
        return None

    def _end_turn(self) -> None:
        ends, self.ends = self.ends, []
        for host, callback in ends:
            if host not in self.dead:
                callback()

    def _next(self) -> _Link | None:
        if self._chance is not None:
            if self._timers and self._chance.random() < 0.1:
                self._fire()
                self._end_turn()
            waiting = sorted(link for link, frames in self._links.items() if frames)
            return self._chance.choice(waiting) if waiting else None
        while self._turns:
            link = self._turns.popleft()
            if self._links.get(link):
                return link
        return None

    def _fire(self) -> None:
        self._now_s, _, host, callback = heapq.heappop(self._timers)
        if host not in self.dead:
            callback()

    def _drop(self, link: _Link) -> None:
        self._links.pop(link, None)

    def _deliver(self, link: _Link, frame: Frame) -> None:
        kind, source, to = link
        if kind == "enter":
            self._depth = {to: 0}
            self.hops = 0
            self.routers[to].on_cast(-1, frame, enters=True)
        elif kind == "host":
            self._depth[to] = depth = self._depth.get(source, 0) + 1
            self.hops = max(self.hops, depth)
            self.routers[to].on_cast(source, frame)
        elif kind == "proc":
            self._at_proc(self.procs[to], frame)
        elif kind == "answer":
            self.routers[to].on_notes_of_proc(_PROC + source, frame)
        elif to < 0:
            self._at_sender(frame)
        elif to not in self.dead:
            self.routers[to].on_notes_of_host(source, frame)

    def _at_proc(self, proc: SimProc, frame: Frame) -> None:
        if frame.kind is Kind.REDUCE:
            notes = [self._combined(proc, frame)]
        else:
            cast = parse_cast(frame)
            proc.seen.append(cast.number)
            tag = NoteKind.FAILURE if proc.fails else NoteKind.RESULT
            body = struct.pack(">I", proc.rank) if cast.functions else b"x" * 32
            key = cast.origin, cast.number
            notes = [Note(tag, *key, 0, body), Note(NoteKind.DONE, *key)]
        link = ("answer", proc.number, proc.host)
        self._links.setdefault(link, deque()).append(pack_notes(notes))
        self._turns.append(link)

    def _combined(self, proc: SimProc, frame: Frame) -> Note:
        order = parse_order(frame)
        key = order.origin, order.number
        if proc.fails:
            return Note(NoteKind.FAILURE, *key)
        proc.num_combined += 1
        for before, after in itertools.pairwise(order.parts):
            assert span_of(before)[1] == after.place, "answers that do not follow each other"
        span = order.parts[0].place, span_of(order.parts[-1])[1]
        return pack_span(NoteKind.PARTIAL, key, span, self._combine(bytes(content_of(part)) for part in order.parts))

    def _at_sender(self, frame: Frame) -> None:
        sender = self.sender
        sender.frames["received"] += 1
        sender.received_bytes += len(frame.body)
        for note in parse_notes(frame):
            answers, region = sender.answers[note.number], self._regions[note.number]
            if note.tag in (NoteKind.LAST, NoteKind.DONE):
                assert note.tag not in sender.ended[note.number], f"{note.tag.name} twice"
                sender.ended[note.number].add(note.tag)
            elif note.tag is NoteKind.LOST:
                lost = parse_lost(note.body)
                for place, rank in enumerate(region.base_ranks()):
                    host = rank // self._per_host
                    if any(start <= host < stop for start, stop in lost.hosts):
                        answers.setdefault(place, NoteKind.LOST)
            else:
                for place in range(*span_of(note)):
                    assert answers.get(place, NoteKind.LOST) is NoteKind.LOST, f"place {place} answered twice"
                    answers[place] = note.tag
                if note.tag in (NoteKind.RESULT, NoteKind.PARTIAL):
                    sender.parts[note.number][note.place] = bytes(content_of(note))
