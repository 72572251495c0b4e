"""How much a sender may have under way to one actor: it is slowed down before it fills a mailbox.

Credit is counted for each pair of channel and actor, so that one full mailbox holds back nobody but those
who write to it: answers, heartbeats and calls to other actors pass. The sender takes credit for each call;
the receiver gives it back when the call was handled, a quarter of the window at a time.

What a receiver still withholds is therefore less than a quarter. A sender takes that into account: less than
a quarter outstanding counts as nothing outstanding, and then a call passes whatever its size. So for each
sender a mailbox holds at most the window, or one large call beside less than a quarter of the window.
"""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable

from monarch_hpc.wire.frames import Frame

__all__ = ["PIECE_BYTES", "Credit", "Ticket", "cost_of"]

PIECE_BYTES = 4096
"""What a waiting call, and each of its buffers, costs beside its bytes, so that a million empty calls are bounded
like a thousand large ones.

In a mailbox Python keeps about 700 bytes for the smallest call: the frame, its views, its place in the queue. For one
that UCX has not handed on yet, the sender keeps up to 2 400. The rest is room: 16 000 calls under way keep any actor
busy.
"""


def cost_of(frame: Frame) -> int:
    """What *frame* costs, the same on both sides.

    Take it before user code sees the buffers: they may be resized then.
    """
    if not frame.buffers:
        return PIECE_BYTES + len(frame.body)
    cost = PIECE_BYTES * (1 + len(frame.buffers)) + len(frame.body)
    for buffer in frame.buffers:
        cost += memoryview(buffer).nbytes
    return cost


class Ticket:
    """The place of one call in the row of those that wait for credit."""

    __slots__ = ("cost", "dest", "granted")

    def __init__(self, dest: int, cost: int) -> None:
        self.dest = dest
        self.cost = cost
        self.granted = False


class Credit:
    """The credit of one channel, both what this side may send and what it owes; for any thread.

    Args:
        window_bytes: for each actor, how much may be under way. Both sides must be given the same.
        granted: called when some that waited need not any more, for whatever reason; wakes them.
    """

    __slots__ = ("_granted", "_lock", "_owed", "_quarter", "_queues", "_used", "_window")

    def __init__(self, window_bytes: int, granted: Callable[[], None]) -> None:
        self._window = window_bytes
        self._granted = granted
        self._quarter = max(window_bytes // 4, 1)
        self._lock = _thread.allocate_lock()
        self._used: dict[int, int] = {}  # actor there -> what it has not given back
        self._queues: dict[int, deque[Ticket]] = {}  # actor there -> who waits, first come first served
        self._owed: dict[int, int] = {}  # actor here -> what was handled and not given back yet

    # ---- the sender's side ----

    def try_take(self, dest: int, cost: int) -> bool:
        """Take credit for one call to actor *dest*; False if there is too little, or others wait for it."""
        with self._lock:
            used = self._used.get(dest, 0)
            if (used + cost > self._window and used >= self._quarter) or dest in self._queues:
                return False
            self._used[dest] = used + cost
            return True

    def take(self, dest: int, cost: int) -> None:
        """Take credit whether there is some or not, for who must not wait."""
        with self._lock:
            self._used[dest] = self._used.get(dest, 0) + cost

    def queue(self, dest: int, cost: int) -> Ticket:
        """Wait in the queue: the ticket is granted by a later `give`, or at once."""
        ticket = Ticket(dest, cost)
        with self._lock:
            self._queues.setdefault(dest, deque()).append(ticket)
            self._serve(dest)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Leave the row without credit; a ticket that was granted meanwhile keeps it."""
        served = False
        with self._lock:
            queue = self._queues.get(ticket.dest)
            if queue is not None and not ticket.granted:
                queue.remove(ticket)
                served = self._serve(ticket.dest)  # it may have stood before smaller ones
        if served:
            self._granted()

    def abandon(self, ticket: Ticket) -> None:
        """Leave the queue, and take no credit: there will be no call."""
        self.leave(ticket)
        if ticket.granted:
            self.give(ticket.dest, ticket.cost)
        ticket.granted, ticket.cost = True, 0  # to leave or abandon again changes nothing

    def give(self, dest: int, cost: int) -> None:
        """Take note of what the other side has given back."""
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
        """Grant what there is credit for; return whether there was some."""
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
        """Take note that actor *dest* has handled a call; return how much to give back now, mostly nothing."""
        with self._lock:
            owed = self._owed.get(dest, 0) + cost
            if owed < self._quarter:
                self._owed[dest] = owed
                return 0
            self._owed.pop(dest, None)
            return owed

    def retire(self, dest: int) -> int:
        """Take note that actor *dest* has ended; return what it withheld, which is to be given back now."""
        with self._lock:
            return self._owed.pop(dest, 0)
