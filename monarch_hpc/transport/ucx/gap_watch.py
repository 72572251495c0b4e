"""Detects messages that UCX has lost: a process that has no memory left gets no message that UCX must hold for it.

libucp drops such a message and logs it (`ucp_recv_desc_init` returns NULL, in all versions up to 1.22). Its receiver
sees at most that a sequence number is missing, and its sender nothing: both would wait for ever. Messages of one peer
may overtake each other, so a gap alone proves nothing. But if the peer answers on its socket and a later message has
come on the lane, the missing one is lost.

A large message may be the last one of a lane, so that no later one shows the gap: some time after one, its sender
sends a record that says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

__all__ = ["GapWatch", "WatchedLane"]

_GAP_S = 15.0
"""Age of a gap, and of an answer about it, before the gap is judged. Messages overtake others by microseconds; but UCX
may send them on several connections, and after a cut TCP tries each again on its own, as late as the cut was long."""


class WatchedLane(Protocol):
    """A lane whose messages are numbered.

    Attributes:
        received_s: when a message last arrived on it, on the engine's clock.
    """

    received_s: float

    @property
    def missing(self) -> int:
        """Number of the message that later ones wait for; -1 if none waits."""
        ...

    def ask(self, asked_us: int) -> None:
        """Ask the peer to send on the lane, then echo *asked_us* on the socket."""
        ...

    def send_mark(self) -> None:
        """Send a record that says nothing."""
        ...

    def lose(self, number: int) -> None:
        """Fail: message *number* is lost."""
        ...


class GapWatch:
    """The watch of one lane; all methods are for the driver, except `sent`.

    Args:
        clock: the engine's.
        call_later: the engine's, from any thread.
    """

    def __init__(
        self, lane: WatchedLane, clock: Callable[[], float], call_later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._lane = lane
        self._clock = clock
        self._call_later = call_later
        self._seen = -1  # number of the gap that is watched
        self._marks = False  # a mark is due

    def sent(self) -> None:
        """Handle that a large message was sent."""
        if not self._marks:
            self._marks = True
            self._call_later(_GAP_S, self._mark)

    def _mark(self) -> None:
        self._marks = False
        self._lane.send_mark()

    def seen(self, number: int) -> None:
        """Handle that a message has come while message *number* has not."""
        if number != self._seen:
            self._seen = number
            self._call_later(_GAP_S, partial(self._ask, number))

    def _ask(self, number: int) -> None:
        if self._lane.missing == number:
            self._lane.ask(int(self._clock() * 1e6))

    def answered(self, asked_us: int) -> None:
        """Handle an answer on the socket: the peer has sent on the lane before."""
        number = self._lane.missing
        if number >= 0:
            self._call_later(_GAP_S, partial(self._judge, asked_us * 1e-6, number))

    def _judge(self, asked_s: float, number: int) -> None:
        if self._lane.missing != number:
            return
        if self._lane.received_s >= asked_s:
            self._lane.lose(number)
        else:  # it waits in a queue, and so may the missing one
            self._ask(number)
