"""Ports: channels from many senders to one receiver, which can themselves be sent in messages."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Literal, NoReturn, Self, TypeVar, cast, overload

from monarch_hpc.actor.context import current_rank
from monarch_hpc.actor.messages.pending import Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.messages.sent_failures import send_failure
from monarch_hpc.actor.ports.inbox import PortInbox
from monarch_hpc.actor.ports.receipt import Receipt
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_flag, check_instance, check_number
from monarch_hpc.core.errors import ActorError, MonarchError, PortClosed
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.transport.credit import Credit, take_credit
from monarch_hpc.wire.frames import Frame, Kind, copy_of
from monarch_hpc.wire.serializer import dumps

__all__ = ["Channel", "Port", "PortReceiver"]

T = TypeVar("T")


class _Flow:
    """The unread messages that this process has sent to one bounded port; for any thread."""

    def __init__(self, capacity: int, granted: Callable[[], None]) -> None:
        self.credit = Credit(capacity, granted)  # each message costs 1
        self.refusal = ""  # why the port is closed, once known


_flows: weakref.WeakValueDictionary[int, _Flow] = weakref.WeakValueDictionary()
"""By number of the port: all copies of a port in one process share its capacity."""


class Port(Generic[T]):
    """The sending end of a channel; may be sent in messages. Made by `Channel.open`."""

    def __init__(self, home: ProcRef, number: int, capacity: int, returning: bool = True) -> None:
        self._home = home
        self._number = number
        self._capacity = capacity
        self._flow: _Flow | None = None  # from the first message to a bounded port
        self.return_undeliverable = returning
        """Whether `send` raises `PortClosed` once the port is known to be closed; if False, it drops the message."""

    def __reduce__(self) -> tuple[object, ...]:
        return Port, (self._home, self._number, self._capacity, self.return_undeliverable)

    def __repr__(self) -> str:
        return f"<Port {self._number:x} to {self._home.host}>"

    def send(self, value: T) -> None:
        """Send *value*; values from one sender arrive in order.

        Blocks while the port is full. A coroutine would block all others on its loop, so it waits for a tenth of a
        second at most, and may then exceed the capacity.

        Raises:
            PortClosed: the port has a capacity and is known to be closed. Without a capacity, and until the closing is
                known, values sent to a closed port are lost.
            Exception: raised while pickling *value*.
        """
        self.send_as(current_rank().rank, value)

    def send_as(self, rank: int, value: T) -> None:
        """Like `send`, on behalf of another sender: *rank* is the rank that a ranked receiver gets."""
        self._send(dumps((rank, value, None)))

    def exception(self, error: BaseException) -> None:
        """Send *error*, which the receiver's read raises; otherwise like `send`.

        Raises:
            TypeError: *error* is not an exception.
        """
        self.exception_as(current_rank().rank, error)

    def exception_as(self, rank: int, error: BaseException) -> None:
        """Like `exception`, on behalf of another sender."""
        check_instance("error", error, BaseException, "an exception, such as ValueError('why')")
        # What a call ended with is passed on as it is: the death of an actor does not become an exception of one.
        raised = not isinstance(error, MonarchError) or isinstance(error, ActorError)
        send_failure(
            f"the sender with rank {rank}",
            error,
            lambda body, buffers: self._send(dumps((rank, None, (body, [copy_of(buffer) for buffer in buffers])))),
            raised=raised,
        )

    def _send(self, packed: tuple[bytes, list[Any]]) -> None:
        runtime = current_runtime()
        where = f"a port of {self._home.host}"
        if not self._capacity:
            runtime.call(self._home, self._number, *packed, None)
            return
        flow, number = self._flow, self._number
        if flow is None:
            new = _Flow(self._capacity, runtime.engine.wake_waiters)
            flow = self._flow = _flows.setdefault(number, new)
        take_credit(runtime.engine, flow.credit, number, 1)
        if flow.refusal:
            flow.credit.give(number, 1)
            if self.return_undeliverable:
                raise PortClosed(where, flow.refusal)
            return

        def read(answer: Frame | MonarchError) -> None:
            if not isinstance(answer, Frame):
                flow.refusal = str(answer)
            elif answer.kind is not Kind.RESULT:
                flow.refusal = "its receiver was closed"
            flow.credit.give(number, 1)

        try:
            runtime.call(self._home, self._number, *packed, Slot(self._home.incarnation, where, read))
        except BaseException:
            flow.credit.give(number, 1)
            raise


class PortReceiver(Generic[T]):
    """The receiving end of a channel, in the process that opened it; iteration waits for each message.

    Closed by `close`, by ``with``, or when it is garbage-collected.
    """

    def __init__(self, inbox: PortInbox, *, ranked: bool) -> None:
        self._inbox = inbox
        self._ranked = ranked

    def __reduce__(self) -> NoReturn:
        raise TypeError("a receiver stays in the process that has opened its channel: send the port")

    def recv(self) -> Receipt[T]:
        """Return a future of the next message, which takes a message only when it is read.

        So a `get` that times out takes no message, and neither does a future that is never read. A future with a
        callback, or in `concurrent.futures.wait`, takes the next message unless it is cancelled.

        Reading it raises errors sent by `Port.exception`, and `PortClosed`.
        """
        return Receipt(self, self._inbox, ranked=self._ranked)

    def ranked(self) -> PortReceiver[tuple[int, T]]:
        """The same receiver, with the sender's rank beside each message; see `Channel.open`."""
        return cast("PortReceiver[tuple[int, T]]", _ReceiverView(self, self._inbox, ranked=True))

    def close(self) -> None:
        """Close the port: unread messages are lost, further ones refused."""
        self._inbox.close("its receiver was closed")

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        receipt = self.recv()
        try:
            return receipt.get()
        except PortClosed:
            if receipt.closed:
                raise StopIteration from None
            raise

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        receipt = self.recv()
        try:
            return await receipt
        except PortClosed:
            if receipt.closed:
                raise StopAsyncIteration from None
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _ReceiverView(PortReceiver[T]):
    """A view of another receiver, which it keeps alive."""

    def __init__(self, receiver: PortReceiver[Any], inbox: PortInbox, *, ranked: bool) -> None:
        super().__init__(inbox, ranked=ranked)
        self._receiver = receiver


class Channel(Generic[T]):
    """A channel for messages outside of calls: ``port, receiver = Channel.open()``."""

    @overload
    @staticmethod
    def open(
        *, once: bool = ..., ranked: Literal[False] = ..., capacity: int | None = ...
    ) -> tuple[Port[Any], PortReceiver[Any]]: ...
    @overload
    @staticmethod
    def open(
        *, once: bool = ..., ranked: Literal[True], capacity: int | None = ...
    ) -> tuple[Port[Any], PortReceiver[tuple[int, Any]]]: ...
    @staticmethod
    def open(
        *, once: bool = False, ranked: bool = False, capacity: int | None = None
    ) -> tuple[Port[Any], PortReceiver[Any]]:
        """Open a port in this process; return its two ends.

        Args:
            once: close the port after one message.
            ranked: deliver ``(rank, message)``, with the rank of the sender in the mesh that was called.
            capacity: number of unread messages from each sending process at which its senders block. None bounds
                only their bytes, by ``transport.mailbox_bytes``.

        Raises:
            TypeError: *capacity* is not a whole number, or a flag is not a bool.
            ValueError: *capacity* is below 1.
        """
        check_flag("once", once)
        check_flag("ranked", ranked)
        if capacity is not None:
            capacity = check_number("capacity", capacity, least=1)
        runtime = current_runtime()
        number = new_incarnation()
        inbox = PortInbox(runtime, number, once=once)
        receiver: PortReceiver[Any] = PortReceiver(inbox, ranked=ranked)
        weakref.finalize(receiver, inbox.abandon).atexit = False
        return Port(runtime.own, number, capacity or 0), receiver

    @staticmethod
    def open_ranked(*, once: bool = False) -> tuple[Port[Any], PortReceiver[tuple[int, Any]]]:
        """Shorthand for ``open(ranked=True)``."""
        return Channel.open(once=once, ranked=True)
