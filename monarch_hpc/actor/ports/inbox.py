"""The queue of one port: messages not yet read, and claims not yet served."""

from __future__ import annotations

from _thread import RLock
from collections import deque
from collections.abc import Callable

from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.wire.frames import Frame

__all__ = ["Claim", "PortInbox"]

Mail = tuple[MessageLink, Frame]


Claim = Callable[[Frame | PortClosed], bool]
"""Takes the next message, or the error if none will arrive; returns False if it is no longer wanted."""


class PortInbox:
    """Messages in order of arrival; for any thread.

    A message holds the credit of its sender until it is taken, so the mailbox limit applies to ports too.
    """

    def __init__(self, runtime: Runtime, number: int, *, once: bool) -> None:
        self.runtime = runtime
        self.wakers: set[Callable[[], None]] = set()
        """Called, on any thread, when there may be a message to take."""
        self._number = number
        self._once = once
        self._lock = RLock()
        self._mail: deque[Mail] = deque()
        self._claims: deque[Claim] = deque()
        self._closed = ""
        runtime.actors.ports[number] = self.put

    @property
    def where(self) -> str:
        """The port in words."""
        return f"port {self._number:x} of {self.runtime.info.host or 'this process'}"

    def put(self, line: MessageLink, frame: Frame) -> None:
        """Add a message."""
        with self._lock:
            refused = bool(self._closed)
            if not refused:
                self._mail.append((line, frame))
                if self._once:
                    self._closed = "it was opened for one message, which has arrived"
        if refused:
            self._refuse(line, frame)
            return
        self._match()
        self._wake()
        if self._once:
            self.runtime.actors.close_port(self._number)

    def take(self, claim: Claim) -> None:
        """Give *claim* the next message if there is one; fail it if none will arrive."""
        with self._lock:
            mail = self._mail.popleft() if self._mail else None
            closed = self._closed
        if mail is None:
            if closed:
                claim(PortClosed(self.where, closed))
        elif not self._deliver(claim, mail):
            self._match()
            self._wake()

    def queue(self, claim: Claim) -> None:
        """Give *claim* the next message, now or on arrival."""
        with self._lock:
            self._claims.append(claim)
        self._match()

    def close(self, why: str) -> None:
        """Refuse further messages, and drop unread ones."""
        self.runtime.actors.close_port(self._number)
        with self._lock:
            self._closed = self._closed or why
            left = list(self._mail)
            self._mail.clear()
        for line, frame in left:
            self._refuse(line, frame)
        self._match()
        self._wake()

    def abandon(self) -> None:
        """Close soon, because the receiver was garbage-collected; may be called at any point of any code."""
        self.runtime.engine.call_soon(lambda: self.close("its receiver was garbage-collected"))

    def _match(self) -> None:
        """Match claims with messages."""
        unwanted = False
        while True:
            with self._lock:
                if not self._claims or not (self._mail or self._closed):
                    break
                claim = self._claims.popleft()
                mail = self._mail.popleft() if self._mail else None
            if mail is None:
                claim(PortClosed(self.where, self._closed))
            elif not self._deliver(claim, mail):
                unwanted = True
        if unwanted:
            self._wake()  # a reader that looked while the message was out saw none

    def _deliver(self, claim: Claim, mail: Mail) -> bool:
        line, frame = mail
        cost = cost_of(frame)
        if not claim(frame):
            with self._lock:
                self._mail.appendleft(mail)
            return False
        line.consumed(self._number, cost)
        if frame.reply:
            self.runtime.replier.reply(line, frame.reply, None)
        return True

    def _refuse(self, line: MessageLink, frame: Frame) -> None:
        line.consumed(self._number, cost_of(frame))
        if frame.reply:
            host = self.runtime.info.host
            self.runtime.replier.reply_failure(line, frame.reply, host, PortClosed(self.where, self._closed))

    def _wake(self) -> None:
        self.runtime.engine.wake_waiters()
        for waker in list(self.wakers):
            waker()
