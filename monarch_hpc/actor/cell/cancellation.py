"""Cancellation and time limits of the calls that an actor has queued or runs.

The actor's thread takes messages out of its mailbox without a lock, while other threads remove cancelled ones. Two
rules make that safe. Removal is atomic, and the thread that removes a message owns it. And the actor's thread publishes
the call that it begins before it checks for a cancellation, while the cancelling thread publishes the cancellation
before it checks what runs: so at least one of the two sees the other.
"""

from __future__ import annotations

import math
import struct
from _thread import RLock
from collections import deque
from collections.abc import Callable
from typing import Protocol

from monarch_hpc.actor.context import note_deadline
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.errors import PeerLost
from monarch_hpc.wire.frames import Buffer, Frame

__all__ = ["LIMITED", "Cancellations", "Due", "Mail", "limit_of", "limited"]

LIMITED = 1 << 63
"""Bit of a reply slot: the body of the call begins with its time limit in seconds."""

_LIMIT = struct.Struct("<d")

Mail = tuple[int, MessageLink, Frame, int, int]
"""Reply slot, link to the sender, frame, cost in credit, and time of arrival in nanoseconds of CLOCK_MONOTONIC.

The slot comes first, so that comparing two entries never reaches their frames: that would run Python code and let
other threads in.
"""

Due = tuple[float, float]
"""Deadline of a call, on the engine's clock, and its time limit in seconds."""

Key = tuple[int, MessageLink]


def limited(limit_s: float, body: Buffer) -> bytes:
    """Prefix the body of a call with its time limit in seconds; see `LIMITED`."""
    return _LIMIT.pack(limit_s) + body


def limit_of(frame: Frame) -> float:
    """The time limit of a call that has just arrived, in seconds; 0 without a valid one."""
    if frame.reply < LIMITED or len(frame.body) < _LIMIT.size:
        return 0.0
    limit_s: float = _LIMIT.unpack_from(frame.body)[0]
    return limit_s if math.isfinite(limit_s) else 0.0


Refuse = Callable[[MessageLink, int, int, float], None]


class Withdrawable(Protocol):
    """A running call that can be cancelled."""

    def cancel(self) -> None:
        """Request cancellation; from any thread."""
        ...


class Cancellations:
    """The cancelled and the time-limited calls of one actor.

    Implements `actor.context.CallerState` for the call that the actor's thread handles.

    Args:
        mailbox: the actor's mailbox.
        refuse: answers a call that does not run; takes its link, reply slot, cost in credit and time limit in seconds.
    """

    __slots__ = ("_cancelled", "_clock", "_due", "_lock", "_mailbox", "_refuse", "_running", "channel", "keys", "slot")

    def __init__(self, mailbox: deque[Mail], clock: Callable[[], float], refuse: Refuse) -> None:
        self.slot = 0
        self.channel: MessageLink | None = None
        """With `slot`, the call that the actor's thread handles or handled last. That thread sets `channel` first."""
        self.keys: set[Key] = set()
        """Cancelled calls that have left the mailbox: begun, or answered already."""
        self._refuse = refuse
        self._mailbox = mailbox
        self._clock = clock
        self._due: dict[Key, Due] = {}
        self._running: dict[Key, Withdrawable] = {}
        self._cancelled = False
        self._lock = RLock()

    # ---- from other threads ----

    def arrive(self, channel: MessageLink, frame: Frame) -> None:
        """Start the time limit of a call that has arrived, and strip the limit from its body."""
        note_deadline()
        limit_s = limit_of(frame)
        self._due[frame.reply, channel] = self._clock() + limit_s, limit_s
        frame.body = memoryview(frame.body)[_LIMIT.size :]

    def cancel(self, channel: MessageLink, slot: int) -> None:
        """Cancel a call. No-op for a call that is answered already."""
        for mail in list(self._mailbox):
            if mail[0] == slot and mail[1] is channel:
                try:
                    self._mailbox.remove(mail)
                except ValueError:  # it is about to run
                    break
                self._drop(channel, slot, mail[3])
                return
        key = slot, channel
        with self._lock:
            self.keys.add(key)
            running = self._running.pop(key, None)
            if self.slot == slot and self.channel is channel:
                self._cancelled = True
        if running is not None:
            running.cancel()

    # ---- the actor's thread ----

    def refuses(self, channel: MessageLink, slot: int, *, orphans: bool = False) -> bool:
        """Refuse the call that is about to begin if it is cancelled or late; return whether it was refused.

        Needed only for a limited call, while there are `keys`, and for *orphans*.

        Args:
            orphans: refuse it also if its caller is gone.
        """
        key = slot, channel
        with self._lock:
            # Of the calls in `keys`, only this one has not begun.
            refused = key in self.keys
            self.keys.clear()
            self._cancelled = False
        due = self._due.get(key)
        if refused or (due is not None and self._clock() >= due[0]):
            self._drop(channel, slot, 0)
            return True
        if orphans and _is_orphan(channel, slot):
            if slot:
                self._drop(channel, slot, 0)  # agents on its way wait for an answer
            return True
        return False

    def _drop(self, channel: MessageLink, slot: int, cost: int) -> None:
        _, limit_s = self._due.pop((slot, channel), (0.0, 0.0))
        self._refuse(channel, slot, cost, limit_s)

    def runs(self, channel: MessageLink, slot: int, running: Withdrawable) -> None:
        """Register the coroutine of a call, until the call is `over`."""
        key = slot, channel
        self._running[key] = running
        if key in self.keys and self._running.pop(key, None) is not None:
            running.cancel()

    def over(self, channel: MessageLink, slot: int) -> None:
        """Forget a call that is answered; from any thread."""
        self._running.pop((slot, channel), None)
        self._due.pop((slot, channel), None)

    def due(self, channel: MessageLink, slot: int) -> Due | None:
        """The deadline of a call; None if it has none."""
        return self._due.get((slot, channel)) if slot >= LIMITED else None

    # ---- for the endpoint that the actor's thread runs ----

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled the call."""
        return self._cancelled

    @property
    def deadline_s(self) -> float | None:
        """The caller's deadline, on the engine's clock; None if it set none."""
        due = None if self.channel is None else self.due(self.channel, self.slot)
        return None if due is None else due[0]


def _is_orphan(channel: MessageLink, slot: int) -> bool:
    """Tell whether nobody can get the answer to a call; what needs none counts only if its sender did not say farewell.

    A program that ends in order has handed over what it broadcast, and knew that nobody would wait for it.
    """
    error = getattr(channel, "error", None)
    return error is not None and (slot != 0 or not (isinstance(error, PeerLost) and error.farewell))
