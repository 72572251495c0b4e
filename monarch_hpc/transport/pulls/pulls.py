"""The pulls of a process: those into its own memory, and those that it wants others to do."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.grants import Grants
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.memory.peer import MemoryPeer
from monarch_hpc.transport.memory.requests import MemoryStep, parse_request
from monarch_hpc.transport.pulls.pull import Pull, PullLink, send_to
from monarch_hpc.transport.pulls.requests import (
    SOURCE,
    Beginning,
    PullStep,
    PullTarget,
    make_pull,
    number_of,
    parse_pull,
)
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Pulls", "Wanting"]

_OF_RECEIVERS = frozenset(
    (PullStep.READY, PullStep.REFUSED, PullStep.REPORT, PullStep.STUCK, PullStep.FAILED, PullStep.ENDED)
)
_LEAST_CHUNK = 4096

Dial = Callable[[Sequence[str], int, Callable[[PullLink | TransportError], None], str], None]


class Wanting(Protocol):
    """A process that wants a copy, and is notified of its receivers' progress; on the driver."""

    def on_pull(self, number: int, step: PullStep, rest: bytes) -> None:
        """Receiver *number* has sent this.

        Raises:
            FrameError: it cannot be parsed.
        """
        ...

    def on_lost(self, link: PullLink, error: TransportError) -> None:
        """A connection has ended, which may be one to a receiver."""
        ...


class _OwnLink:
    """The connection of a process to itself."""

    def __init__(self, engine: Engine, memory: MemoryPeer, deliver: Callable[[PullLink, Frame], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self.memory = memory

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Deliver *frame*, on the driver."""
        self._engine.call_soon(partial(self._deliver, self, frame))
        return True

    def give_up(self, reason: str) -> None:
        """No-op: copies within a process end by themselves."""


class Pulls:
    """The pulls of one process; on the driver.

    Args:
        memory: the memory of this process itself.

    Attributes:
        own: the connection to this process itself.
        wanted: who wants what is copied, by the copy's identifier.
    """

    def __init__(self, engine: Engine, grants: Grants, memory: MemoryPeer) -> None:
        self.own: PullLink = _OwnLink(engine, memory, self._deliver)
        self._incarnation = 0
        self._dial: Dial = lambda *_: None
        self.wanted: dict[bytes, Wanting] = {}
        self._engine = engine
        self._grants = grants
        self._pulls: dict[tuple[bytes, int], Pull] = {}
        self._children: dict[tuple[bytes, int], set[Pull]] = {}  # by copy and number of the parent
        self._spans: list[tuple[int, int]] = []  # addresses that pulls write to, first and behind last; in order
        self._answers: dict[Pull, list[Callable[[], object]]] = {}  # to be sent once it is over

    def _deliver(self, link: PullLink, frame: Frame) -> None:
        if frame.kind is Kind.MEMORY:
            step, identifier, rest = parse_request(frame)
            assert step is MemoryStep.REVOKE, "this process asks itself for nothing else"
            self._on_revoke(identifier, rest.decode(errors="replace"))
        else:
            self.on_frame(link, frame)

    def on_frame(self, link: PullLink, frame: Frame) -> None:
        """Handle a PULL frame. One that cannot be parsed is refused: the channel serves others of that process, too."""
        try:
            self._on_frame(link, frame)
        except FrameError as error:
            send_to(link, make_pull(PullStep.REFUSED, frame.reply, bytes(ID_BYTES), str(error).encode()))

    def _on_frame(self, link: PullLink, frame: Frame) -> None:
        step, copy, rest = parse_pull(frame)
        number = frame.reply
        if step in _OF_RECEIVERS:
            wanting = self.wanted.get(copy)
            if wanting is not None:
                wanting.on_pull(number, step, rest)
        elif step is PullStep.OPEN:
            why = self._open(link, copy, number, PullTarget.parse(rest))
            send_to(link, make_pull(PullStep.REFUSED if why else PullStep.READY, number, copy, why.encode()))
        elif step in (PullStep.PROGRESS, PullStep.GONE):
            self._on_parent(link, copy, number, None if step is PullStep.GONE else number_of(rest))
        else:
            self._on_request(link, step, copy, number, rest)

    def _on_request(self, link: PullLink, step: PullStep, copy: bytes, number: int, rest: bytes) -> None:
        pull = self._pulls.get((copy, number))
        if step is PullStep.FOLLOW:
            if pull is None:
                send_to(link, make_pull(PullStep.GONE, number, copy))
            else:
                pull.followers.add(link)
                pull.answer(link)
        elif step is PullStep.BEGIN:
            beginning = Beginning.parse(rest)
            if pull is not None and pull.wanted_by is link:
                self._forget_parent(pull)
                self._children.setdefault((copy, beginning.parent), set()).add(pull)
                pull.begin(beginning)
        else:
            answer = partial(send_to, link, make_pull(PullStep.ENDED, number, copy))
            if pull is None or pull.wanted_by is not link:
                answer()
            else:
                self._end(pull, answer)

    def _on_parent(self, link: PullLink, copy: bytes, parent: int, num_bytes: int | None) -> None:
        for pull in list(self._children.get((copy, parent), ())):
            if pull.link is link:
                if num_bytes is None:
                    pull.on_lost(link, FrameError("it does not take part in this copy any more"))
                else:
                    pull.on_progress(num_bytes)

    def _forget_parent(self, pull: Pull) -> None:
        key = pull.copy, SOURCE if pull.parent is None else pull.parent.parent
        children = self._children.get(key, set())
        children.discard(pull)
        if not children:
            self._children.pop(key, None)

    # ---- connections ----

    def reach_by(self, incarnation: int, dial: Dial) -> None:
        """Reach other processes by *dial*, see `transport.node.Node.dial`; *incarnation* is that of this one."""
        self._incarnation, self._dial = incarnation, dial

    def _reach(self, where: Beginning, done: Callable[[PullLink | TransportError], None]) -> None:
        if where.incarnation == self._incarnation:
            done(self.own)
        else:
            self._dial(where.addresses, where.incarnation, done, where.allocation)

    # ---- receivers ----

    def _open(self, link: PullLink, copy: bytes, number: int, opening: PullTarget) -> str:
        """Prepare a pull; return why it cannot be, or nothing."""
        memory = self._grants.hold(opening.memory, self.own)
        if memory is None:
            return self._grants.problem(opening.memory)
        problem = memory.parts.problem(opening.offset, opening.num_bytes, write=True)
        if problem:
            return problem
        if (copy, number) in self._pulls or opening.chunk_bytes < min(_LEAST_CHUNK, opening.num_bytes):
            return "it takes part in this copy already, or the chunks are too small"
        pull = Pull(
            *(self._engine, copy, number, link, memory, opening),
            *(self._reach, self._forget),
        )
        first, end = pull.span
        place = bisect.bisect(self._spans, (first, end))
        if any(start < end and first < stop for start, stop in self._spans[max(place - 1, 0) : place + 1]):
            return "its bytes are being written by another copy, or overlap with those of another destination"
        source = self._grants.find(opening.source)
        if source is not None:
            start = source.address_of(opening.source_offset)
            if start < end and first < start + opening.num_bytes:
                return "its bytes overlap with those of the source"
        self._spans.insert(place, pull.span)
        self._pulls[copy, number] = pull
        return ""

    def _end(self, pull: Pull, answer: Callable[[], object]) -> None:
        self._answers.setdefault(pull, []).append(answer)
        pull.end()

    def _forget(self, pull: Pull) -> None:
        if self._pulls.pop((pull.copy, pull.number), None) is None:
            return
        del self._spans[bisect.bisect_left(self._spans, pull.span)]
        self._forget_parent(pull)
        for answer in self._answers.pop(pull, ()):
            answer()

    def _on_revoke(self, identifier: bytes, why: str) -> None:
        """Stop writing to a memory that is being revoked."""
        using = [pull for pull in self._pulls.values() if pull.opening.memory == identifier]
        left = len(using)

        def release() -> None:
            self._grants.on_release(identifier, self.own)

        def ended() -> None:
            nonlocal left
            left -= 1
            if not left:
                release()

        for pull in using:
            self._answers.setdefault(pull, []).append(ended)
            pull.fail(why)
        if not using:
            release()

    # ---- the end of connections ----

    def on_lost(self, link: PullLink, error: TransportError) -> None:
        """Handle the end of a connection."""
        for pull in list(self._pulls.values()):
            if pull.wanted_by is link:
                pull.end()
            else:
                pull.on_lost(link, error)
        for wanting in list(self.wanted.values()):
            wanting.on_lost(link, error)
