"""Flow control: limits how much a sender may have in flight to one actor, before its mailbox overflows.

Credit is counted per channel and actor, so that a full mailbox blocks only its own senders: answers, heartbeats and
calls to other actors pass. The sender takes credit for each call; the receiver returns it when the call was handled, a
quarter of the window at a time.

The receiver therefore withholds less than a quarter. The sender allows for that: less than a quarter outstanding
counts as nothing outstanding, and then a call of any size passes. So for each sender a mailbox holds at most the
window, or one large call beside less than a quarter of the window.
"""

from __future__ import annotations

import sys
from _thread import RLock
from collections import deque
from collections.abc import Callable

from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Frame, sizes_of

__all__ = ["PIECE_BYTES", "Credit", "Ticket", "cost_of", "take_credit"]

PIECE_BYTES = 4096
"""Cost of a waiting call, and of each of its buffers, in addition to its bytes, so that a million empty calls are
bounded like a thousand large ones.

Python keeps about 700 bytes in a mailbox for the smallest call: the frame, its views, its queue entry. For a call that
UCX has not delivered yet, the sender keeps up to 2 400. The rest is headroom: 16 000 calls in flight keep any actor
busy.
"""

_HOLD_S = 0.1
"""Longest time that one call of a coroutine is blocked.

The coroutine is slowed but not stopped: the loop that it blocks may run the very actor that its receiver waits for.
"""

_WARN_AFTER_S = 10.0
"""Delay before a blocked sender is reported: longer than most endpoints run, short enough to explain a hang."""


def cost_of(frame: Frame) -> int:
    """Return the cost of *frame*, the same on both sides.

    Compute it before user code sees the buffers, which may be resized then.
    """
    if not frame.buffers:
        return PIECE_BYTES + len(frame.body)
    return PIECE_BYTES * (1 + len(frame.buffers)) + len(frame.body) + sum(sizes_of(frame.buffers))


class Ticket:
    """One call's entry in the queue for credit."""

    __slots__ = ("cost", "dest", "granted")

    def __init__(self, dest: int, cost: int) -> None:
        self.dest = dest
        self.cost = cost
        self.granted = False


class Credit:
    """The credit of one channel, for sending and for receiving; for any thread.

    Args:
        window_bytes: how much may be in flight to each actor; must be the same on both sides.
        granted: called when some waiting tickets have been granted, to wake their threads.
    """

    __slots__ = ("_granted", "_lock", "_owed", "_quarter", "_queues", "_used", "_window")

    def __init__(self, window_bytes: int, granted: Callable[[], None]) -> None:
        self._window = window_bytes
        self._granted = granted
        self._quarter = max(window_bytes // 4, 1)
        self._lock = RLock()
        self._used: dict[int, int] = {}  # remote actor -> credit it has not returned
        self._queues: dict[int, deque[Ticket]] = {}  # remote actor -> waiting tickets, first come first served
        self._owed: dict[int, int] = {}  # local actor -> credit of handled calls, not returned yet

    # ---- the sender's side ----

    def try_take(self, dest: int, cost: int) -> bool:
        """Take credit for one call to actor *dest*; False if there is too little, or others wait for it already."""
        # Nothing is called while the lock is held: CPython would run a signal handler after that, and one that waits
        # for an answer would wait for the driver, which needs the lock.
        with self._lock:
            used = self._used[dest] if dest in self._used else 0  # noqa: SIM401 a call
            taken = (used + cost <= self._window or used < self._quarter) and dest not in self._queues
            if taken:
                self._used[dest] = used + cost
        return taken

    def take(self, dest: int, cost: int) -> None:
        """Take credit even if there is none, for callers that must not wait."""
        with self._lock:
            self._used[dest] = self._used.get(dest, 0) + cost

    def queue(self, dest: int, cost: int) -> Ticket:
        """Join the queue; the ticket is granted at once or by a later `give`."""
        ticket = Ticket(dest, cost)
        with self._lock:
            self._queues.setdefault(dest, deque()).append(ticket)
            self._serve(dest)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Leave the queue without credit; a ticket that was granted meanwhile keeps it."""
        served = False
        with self._lock:
            queue = self._queues.get(ticket.dest)
            if queue is not None and not ticket.granted:
                queue.remove(ticket)
                served = self._serve(ticket.dest)  # smaller calls may have waited behind it
        if served:
            self._granted()

    def abandon(self, ticket: Ticket) -> None:
        """Leave the queue and return any credit granted: the call will not be sent."""
        self.leave(ticket)
        if ticket.granted:
            self.give(ticket.dest, ticket.cost)
        ticket.granted, ticket.cost = True, 0  # makes leave and abandon idempotent

    def give(self, dest: int, cost: int) -> None:
        """Record credit that the other side has returned."""
        served = False
        with self._lock:
            left = self._used.pop(dest, 0) - cost
            if left > 0:
                self._used[dest] = left
            if self._queues and dest in self._queues:
                served = self._serve(dest)
        if served:
            self._granted()

    def _serve(self, dest: int) -> bool:
        """Grant tickets while credit lasts; return whether any was granted."""
        queue = self._queues[dest]
        waiting = len(queue)
        used = self._used.get(dest, 0)
        while queue and (used + queue[0].cost <= self._window or used < self._quarter):
            ticket = queue.popleft()
            used = self._used[dest] = used + ticket.cost
            ticket.granted = True
        served = len(queue) < waiting
        if not queue:
            del self._queues[dest]
        return served

    # ---- the receiver's side ----

    def consumed(self, dest: int, cost: int) -> int:
        """Record that actor *dest* has handled a call; return how much credit to return now, usually 0."""
        with self._lock:
            owed = self._owed.get(dest, 0) + cost
            if owed < self._quarter:
                self._owed[dest] = owed
                return 0
            self._owed.pop(dest, None)
            return owed

    def retire(self, dest: int) -> int:
        """Record that actor *dest* has ended; return the credit it withheld, to be returned now."""
        with self._lock:
            return self._owed.pop(dest, 0)


def take_credit(
    engine: Engine,
    credit: Credit,
    dest: int,
    cost: int,
    end_s: float | None = None,
    *,
    broken: Callable[[], bool] = lambda: False,
    on_late: Callable[[float], None] = lambda _waited_s: None,
) -> bool:
    """Take credit for one call to actor *dest*; wait for it, driving the engine, if there is too little.

    The driver never waits, a coroutine `_HOLD_S` at most; they take credit that is not there. An exception that a
    signal handler raises, such as KeyboardInterrupt, gives all credit back: the call will not be sent.

    Args:
        end_s: when to give up, on the engine's clock.
        broken: whether waiting is in vain, so that the call continues without credit.
        on_late: called with the seconds waited so far, once, if the wait is long.

    Returns:
        Whether credit was taken; False if *end_s* passed first.
    """
    if credit.try_take(dest, cost):
        return True
    if engine.driving:
        credit.take(dest, cost)
        return True
    # Not imported here: agents have no event loops, and asyncio is a tenth of what they load.
    asyncio = sys.modules.get("asyncio")
    in_coroutine = asyncio is not None and asyncio._get_running_loop() is not None
    first_s = _HOLD_S if in_coroutine else _WARN_AFTER_S
    left_s = None if end_s is None else max(end_s - engine.clock(), 0.0)
    with engine.undisturbed():  # see `try_take`
        ticket = credit.queue(dest, cost)

    def ready() -> bool:
        return ticket.granted or broken()

    try:
        over = engine.wait(ready, first_s if left_s is None else min(first_s, left_s))
        if not over and not in_coroutine and (left_s is None or left_s > first_s):
            on_late(first_s)
            engine.wait(ready, None if end_s is None else max(end_s - engine.clock(), 0.0))
        with engine.undisturbed():
            credit.leave(ticket)
    except BaseException:
        with engine.undisturbed():
            credit.abandon(ticket)
        raise
    if not ticket.granted:
        if end_s is not None and engine.clock() >= end_s:
            return False
        credit.take(dest, cost)
    return True
