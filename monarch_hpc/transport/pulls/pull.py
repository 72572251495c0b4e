"""One pull: memory of this process that fills from another one's, and that others pull from meanwhile.

No code of its owner runs: the engine reads chunk by chunk, one-sided, from wherever it was last told to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Protocol

from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.peer import MemoryPeer
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.pulls.requests import (
    Beginning,
    PullStep,
    PullTarget,
    make_pull,
    pack_number,
    pack_trouble,
)
from monarch_hpc.wire.frames import Frame

__all__ = ["REPORT_S", "Pull", "PullLink", "Reach", "send_to"]

_WINDOW = 4
"""Chunks under way at a time: so many that the next one is asked for long before the last has arrived."""

REPORT_S = 0.25
"""Time between two reports of a receiver to the process that wants the copy: a few bytes each."""

_GRACE_S = 0.5
"""Time in which a transfer that cannot be stopped may still end, before the connection that carries it is given up."""


class PullLink(Protocol):
    """A connection to a process, which may be this one."""

    @property
    def memory(self) -> MemoryPeer:
        """The registered memory of that process."""
        ...

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send *frame*; see `transport.api.FrameChannel.send`."""
        ...

    def give_up(self, reason: str) -> None:
        """See `transport.api.FrameChannel.give_up`."""
        ...


Reach = Callable[[Beginning, Callable[[PullLink | TransportError], None]], None]
"""Finds the process of a `Beginning`."""


def send_to(link: PullLink, frame: Frame) -> None:
    """Send *frame*; no-op if that process is gone, which `on_lost` reports."""
    with contextlib.suppress(TransportError):
        link.send(frame)


class Pull:
    """A receiver's part of a copy; on the driver.

    Args:
        copy, number: identify it.
        wanted_by: the process that wants the copy, and gets the reports.
        memory: where the bytes go.
        over: called once it has ended and nothing is written any more.

    Attributes:
        parent: where it pulls from.
        link: the connection to that process; None while there is none.
        num_bytes: the bytes that have arrived, from the beginning on, without a gap.
        span: the first address that is written, and the one behind the last.
    """

    def __init__(
        self,
        engine: Engine,
        copy: bytes,
        number: int,
        wanted_by: PullLink,
        memory: Memory,
        opening: PullTarget,
        reach: Reach,
        over: Callable[[Pull], None],
    ) -> None:
        self.copy = copy
        self.number = number
        self.wanted_by = wanted_by
        self.memory = memory
        self.opening = opening
        self.parent: Beginning | None = None
        self.link: PullLink | None = None
        self.num_bytes = 0
        first = memory.address_of(opening.offset)
        self.span = first, first + opening.num_bytes
        self.followers: set[PullLink] = set()
        self._engine = engine
        self._reach = reach
        self._over = over
        self._available = 0  # bytes that the parent has
        self._arrived: set[int] = set()  # chunks behind a gap
        self._under_way: dict[int, Transfer] = {}
        self._stopping: dict[Transfer, PullLink] = {}  # transfers from earlier parents, which could not be stopped yet
        self._turn = 0  # counts the parents, so that answers of earlier ones are known
        self._ended = False

    # ---- where it pulls from ----

    def begin(self, beginning: Beginning) -> None:
        """Pull from there, and go on where it is."""
        if self._ended:
            return
        if self.parent is None:
            self._report_later()
        self._leave()
        self.parent = beginning
        self._reach(beginning, partial(self._reached, self._turn))

    def _leave(self) -> None:
        """Leave the parent."""
        self._turn += 1
        link, self.link = self.link, None
        for transfer in self._under_way.values():
            if link is not None and not transfer.stop(MemoryAccessError("there", "the pull goes on elsewhere")):
                self._stopping[transfer] = link
                self._engine.call_later(_GRACE_S, partial(self._give_up, transfer))
        self._under_way.clear()
        self._available = 0

    def _give_up(self, transfer: Transfer) -> None:
        link = self._stopping.get(transfer)
        if link is not None and not transfer.done:
            link.give_up("a transfer could not be stopped in time")

    def _reached(self, turn: int, link: PullLink | TransportError) -> None:
        if turn != self._turn or self._ended:
            return
        if isinstance(link, TransportError):
            self._stuck(link)
            return
        assert self.parent is not None
        self.link = link
        if self.parent.whole:
            self.on_progress(self.opening.num_bytes)
        else:
            send_to(link, make_pull(PullStep.FOLLOW, self.parent.parent, self.copy))

    def on_progress(self, num_bytes: int) -> None:
        """Take note that the parent has so many bytes."""
        self._available = max(self._available, num_bytes)
        self._fill()

    def on_lost(self, link: PullLink, error: TransportError) -> None:
        """Take note that the connection to a process has ended."""
        self.followers.discard(link)
        if link is self.link:
            self._stuck(error)

    def _stuck(self, error: TransportError) -> None:
        assert self.parent is not None
        self._leave()
        refused = isinstance(error, MemoryAccessError)
        why = error.problem if isinstance(error, MemoryAccessError) else str(error)
        self._tell(PullStep.STUCK, pack_trouble(self.parent.parent, why, refused=refused))

    # ---- the bytes ----

    def _fill(self) -> None:
        """Begin transfers, as many as there is room for."""
        while (chunk := self._next()) is not None:
            self._begin_chunk(chunk)

    def _next(self) -> int | None:
        whole = self.num_bytes == self.opening.num_bytes
        if whole or self.link is None or len(self._under_way) >= _WINDOW:
            return None
        chunk_bytes = self.opening.chunk_bytes
        chunk = self.num_bytes // chunk_bytes
        while chunk in self._arrived or chunk in self._under_way:
            chunk += 1
        start = chunk * chunk_bytes
        end = min(start + chunk_bytes, self.opening.num_bytes)
        return chunk if start < end <= self._available else None

    def _begin_chunk(self, chunk: int) -> None:
        assert self.link is not None
        assert self.parent is not None
        start = chunk * self.opening.chunk_bytes
        end = min(start + self.opening.chunk_bytes, self.opening.num_bytes)
        into = self.memory.target(self.opening.offset + start, end - start)
        try:
            transfer = self.link.memory.move(self.parent.memory, self.parent.offset + start, into, write=False)
        except Exception as error:  # noqa: BLE001 such as memory that was resized meanwhile; a pull always ends
            self.fail(str(error))
            return
        self._under_way[chunk] = transfer
        transfer.on_done(partial(self._moved, chunk))  # later, also if it is done: others get a turn between two chunks

    def _moved(self, chunk: int, transfer: Transfer) -> None:
        if self._under_way.get(chunk) is not transfer:
            self._stopping.pop(transfer, None)
            self._settle()
            return
        del self._under_way[chunk]
        if transfer.error is not None:
            self._stuck(transfer.error)
            return
        self._arrived.add(chunk)
        opening = self.opening
        before = self.num_bytes
        while (first := self.num_bytes // opening.chunk_bytes) in self._arrived:
            self._arrived.remove(first)
            self.num_bytes = min((first + 1) * opening.chunk_bytes, opening.num_bytes)
        if self.num_bytes > before:
            for follower in list(self.followers):
                self.answer(follower)
            if self.num_bytes == opening.num_bytes:
                self._report()
        self._fill()

    # ---- what others are told ----

    def answer(self, follower: PullLink) -> None:
        """Tell *follower* how much has arrived."""
        send_to(follower, make_pull(PullStep.PROGRESS, self.number, self.copy, pack_number(self.num_bytes)))

    def _tell(self, step: PullStep, rest: bytes = b"") -> None:
        send_to(self.wanted_by, make_pull(step, self.number, self.copy, rest))

    def _report(self) -> None:
        self._tell(PullStep.REPORT, pack_number(self.num_bytes))

    def _report_later(self) -> None:
        def report() -> None:
            if not self._ended:
                self._report()
                self._report_later()

        self._engine.call_later(max(self.opening.report_s, REPORT_S), report)

    # ---- the end ----

    def fail(self, why: str) -> None:
        """End it because of *why*."""
        self._tell(PullStep.FAILED, why.encode())
        self.end()

    def end(self) -> None:
        """Write no more; `over` follows."""
        self._leave()
        self._ended = True
        self._settle()

    def _settle(self) -> None:
        if self._ended and not self._stopping:
            self._over(self)
