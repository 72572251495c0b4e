"""A future for a port's next message; it claims a message only when read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from monarch_hpc.actor.context import context
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.sent_failures import unloadable, unpack_failure
from monarch_hpc.actor.ports.inbox import PortInbox
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import loads

if TYPE_CHECKING:
    import asyncio

__all__ = ["Receipt", "unpack_message"]

T = TypeVar("T")


class Receipt(Future[T], Generic[T]):
    """Takes a message when it is read, so that no message is lost to a future that is never read.

    Args:
        receiver: kept alive by this future.
        ranked: whether the value is a pair of the sender's rank and the message.
    """

    def __init__(self, receiver: object, inbox: PortInbox, *, ranked: bool) -> None:
        super().__init__(inbox.runtime.engine, lambda: inbox.where)
        self.closed = False
        """Whether the port was closed without a message for this future."""
        self._receiver = receiver
        self._inbox = inbox
        self._ranked = ranked
        self._queued = False

    # ---- reading ----

    def done(self) -> bool:
        """Whether there is a message; if so, take it."""
        return self._has_ended()

    def result(self, timeout: float | None = None) -> T:
        """See `Future.result`."""
        self._has_ended()
        return super().result(timeout)

    def add_done_callback(self, callback: Callable[[Future[T]], object]) -> None:
        """See `Future.add_done_callback`; claims the next message."""
        super().add_done_callback(callback)
        self._queue()

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name == "_condition":  # `concurrent.futures` is about to wait
            self._queue()
        return found

    def __await__(self) -> Generator[object, None, T]:
        from asyncio import get_running_loop

        loop = get_running_loop()
        while not self._has_ended():
            waiter: asyncio.Future[None] = loop.create_future()

            def wake(waiter: asyncio.Future[None] = waiter) -> None:
                if not waiter.done():
                    waiter.set_result(None)

            def look(_future: object = None, wake: Callable[[], None] = wake) -> None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, and the waiting coroutine gone
                    loop.call_soon_threadsafe(wake)

            self._inbox.wakers.add(look)
            Future.add_done_callback(self, look)
            place = self._begin_wait()
            try:
                # Checked again: a message may have arrived before `look` was registered.
                if not self._has_ended():
                    yield from waiter.__await__()
            finally:
                self._end_wait(place)
                self._inbox.wakers.discard(look)
                self._abandon(look)
        return (yield from super().__await__())

    def _has_ended(self) -> bool:
        # Polled by a waiting thread: it takes a message as soon as there is one.
        if super()._has_ended():
            return True
        if not self._queued:
            self._inbox.take(self._take)
        return super()._has_ended()

    def _begin_wait(self) -> int:
        return self._inbox.runtime.recorder.wait_for("a message to a port", context().mark)

    def _end_wait(self, place: int) -> None:
        self._inbox.runtime.recorder.waited(place)

    def _queue(self) -> None:
        if not self._queued:
            self._queued = True
            self._inbox.queue(self._take)

    # ---- for the inbox ----

    def _take(self, given: Frame | PortClosed) -> bool:
        """Complete with the message in a frame, or fail; False if this future was cancelled."""
        if isinstance(given, PortClosed):
            self.closed = True
            self.set_exception(given)
            return True
        return self._complete(partial(self._unpack, given), fails=False)

    def _unpack(self, frame: Frame) -> T:
        rank, value = unpack_message(frame)
        return cast(T, (rank, value) if self._ranked else value)


def unpack_message(frame: Frame) -> tuple[int, object]:
    """Return the sender's rank and the value of a message to a port.

    Raises:
        MonarchError: the sender sent an exception, or the value cannot be unpickled.
    """
    try:
        message = loads(frame.body, frame.buffers)
    except BaseException as error:  # noqa: BLE001 unpickling runs user code
        raise unloadable(error) from None
    assert isinstance(message, tuple)
    rank, value, failure = message
    if failure is not None:
        body, buffers = failure
        raise unpack_failure(Frame(Kind.FAILURE, body=body, buffers=buffers))
    return rank, value
