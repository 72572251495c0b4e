"""What became of calls while they waited or ran: their callers gave up, or their time is over.

The actor's thread takes messages out of its mailbox without a lock, and others take cancelled ones out beside it.
Two rules make that safe. Who removes a message from the mailbox has it: removing is atomic. And the actor's thread
says which call it begins before it looks whether that was cancelled, while who cancels notes that before it looks
what runs: so at least one of the two sees the other.
"""

from __future__ import annotations

import _thread
import math
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from monarch_hpc.actor.context import note_deadline
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.wire.frames import Buffer, Frame

__all__ = ["LIMITED", "Cancellations", "Due", "Mail", "limited"]

LIMITED = 1 << 63
"""This bit of a reply slot says that the body of the call begins with how many seconds its caller waits."""

_LIMIT = struct.Struct("<d")

Mail = tuple[int, MessageLink | None, Frame, int, int]
"""Reply slot, where it came from, the frame, what it costs, and when it came, in nanoseconds of CLOCK_MONOTONIC.

The slot is first: so mails are told apart without a look at their frames, which would run Python code and let
other threads in.
"""

Due = tuple[float, float]
"""When the caller of a call gives up, on the engine's clock, and after how many seconds."""

Key = tuple[int, MessageLink]


def limited(limit_s: float, body: Buffer) -> bytes:
    """The body of a call whose caller waits *limit_s* seconds; see `LIMITED`."""
    return _LIMIT.pack(limit_s) + body


Refuse = Callable[[MessageLink, int, int, float], None]


class Withdrawable(Protocol):
    """A call that runs and can be interrupted."""

    def cancel(self) -> None:
        """Interrupt it soon; from any thread."""
        ...


class Cancellations:
    """The calls of one actor that are cancelled or limited in time.

    It is also what the actor's thread knows of the call that it handles, see `actor.context.CallerState`.

    Args:
        mailbox: of the actor.
        refuse: answers a call that does not run, gives back what it costs, and says how long its caller waited.
    """

    __slots__ = ("_cancelled", "_clock", "_due", "_lock", "_mailbox", "_refuse", "_running", "channel", "keys", "slot")

    def __init__(self, mailbox: deque[Mail], clock: Callable[[], float], refuse: Refuse) -> None:
        self.slot = 0
        self.channel: MessageLink | None = None
        """With `slot` the call that the actor's thread handles, or handled last; set there, and this one first."""
        self.keys: set[Key] = set()
        """Cancelled calls that are in the mailbox no more: begun, or answered already."""
        self._refuse = refuse
        self._mailbox = mailbox
        self._clock = clock
        self._due: dict[Key, Due] = {}
        self._running: dict[Key, Withdrawable] = {}
        self._cancelled = False
        self._lock = _thread.allocate_lock()

    # ---- from other threads ----

    def arrive(self, channel: MessageLink, frame: Frame) -> None:
        """A call that is limited in time came: its time runs."""
        note_deadline()
        limit_s = _LIMIT.unpack_from(frame.body)[0] if len(frame.body) >= _LIMIT.size else 0.0
        limit_s = limit_s if math.isfinite(limit_s) else 0.0
        self._due[frame.reply, channel] = self._clock() + limit_s, limit_s
        frame.body = memoryview(frame.body)[_LIMIT.size :]

    def cancel(self, channel: MessageLink, slot: int) -> None:
        """The caller waits no longer. No-op for a call that is answered already."""
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

    def refuses(self, channel: MessageLink, slot: int) -> bool:
        """Whether the call that is about to begin must not, and is answered; to be asked if it is limited, or there
        are `keys`.
        """
        key = slot, channel
        with self._lock:
            # Of those that are noted, this is the only one that has not begun.
            refused = key in self.keys
            self.keys.clear()
            self._cancelled = False
        due = self._due.get(key)
        if refused or (due is not None and self._clock() >= due[0]):
            self._drop(channel, slot, 0)
            return True
        return False

    def _drop(self, channel: MessageLink, slot: int, cost: int) -> None:
        _, limit_s = self._due.pop((slot, channel), (0.0, 0.0))
        self._refuse(channel, slot, cost, limit_s)

    def runs(self, channel: MessageLink, slot: int, running: Withdrawable) -> None:
        """The call goes on as a coroutine, until it is `over`."""
        key = slot, channel
        self._running[key] = running
        if key in self.keys and self._running.pop(key, None) is not None:
            running.cancel()

    def over(self, channel: MessageLink, slot: int) -> None:
        """The call is answered; from any thread."""
        self._running.pop((slot, channel), None)
        self._due.pop((slot, channel), None)

    def due(self, channel: MessageLink, slot: int) -> Due | None:
        """When the caller of a call gives up; None if it waits for ever."""
        return self._due.get((slot, channel)) if slot >= LIMITED else None

    # ---- for the endpoint that the actor's thread runs ----

    @property
    def cancelled(self) -> bool:
        """Whether the caller is known to have given up."""
        return self._cancelled

    @property
    def deadline_s(self) -> float | None:
        """When the caller gives up, on the engine's clock."""
        due = None if self.channel is None else self.due(self.channel, self.slot)
        return None if due is None else due[0]
