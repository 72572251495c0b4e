"""Ports: ways for values that travel in messages themselves, from many senders to one receiver."""

from __future__ import annotations

import _thread
import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, cast, overload

from monarch_hpc.actor.context import current_rank
from monarch_hpc.actor.messages.payload import send_failure
from monarch_hpc.actor.messages.pending import Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.ports.inbox import PortInbox
from monarch_hpc.actor.ports.receipt import Receipt
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_flag, check_instance, check_number
from monarch_hpc.core.errors import MonarchError, PortClosed
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import dumps

__all__ = ["Channel", "Port", "PortReceiver"]

T = TypeVar("T")

_HOLD_S = 0.1
"""How long a coroutine is held back at most: the loop that it blocks may be what the receiver waits for."""


class _Flow:
    """What this process has sent to one bounded port and what was not read yet; for any thread."""

    def __init__(self) -> None:
        self.num = 0
        self.refusal = ""  # why nobody will read, once that is known
        self._lock = _thread.allocate_lock()

    def take(self, capacity: int, *, forced: bool = False) -> bool:
        """Make room for one more; False if there is none."""
        with self._lock:
            if self.num >= capacity and not forced:
                return False
            self.num += 1
            return True

    def give(self) -> None:
        """One was read."""
        with self._lock:
            self.num -= 1


_flows: weakref.WeakValueDictionary[int, _Flow] = weakref.WeakValueDictionary()
"""By number of the port: all copies of one port in a process share its capacity."""


class Port(Generic[T]):
    """The end to send to. It may be sent in messages; made by `Channel.open`."""

    def __init__(self, home: ProcRef, number: int, capacity: int, returning: bool = True) -> None:
        self._home = home
        self._number = number
        self._capacity = capacity
        self._flow = _flows.setdefault(number, _Flow())
        self.return_undeliverable = returning
        """Whether `send` raises `PortClosed` once the port is known to be closed. False drops the message instead."""

    def __reduce__(self) -> tuple[object, ...]:
        return Port, (self._home, self._number, self._capacity, self.return_undeliverable)

    def __repr__(self) -> str:
        return f"<Port {self._number:x} to {self._home.host}>"

    def send(self, value: T) -> None:
        """Send *value*; those of one sender arrive in their order.

        Waits while the port is full. A coroutine, which would block all others, is held up for a moment only,
        and may thereby exceed the capacity.

        Raises:
            PortClosed: the port has a capacity, and is known to be closed. Without one, and until that is known,
                what is sent to a closed port is lost.
            Exception: what pickling *value* raises.
        """
        self.send_as(current_rank().rank, value)

    def send_as(self, rank: int, value: T) -> None:
        """`send`, on behalf of another sender: *rank* is what a ranked receiver reads."""
        self._send(dumps((rank, value, None)))

    def exception(self, error: BaseException) -> None:
        """Raise *error* where the receiver reads; otherwise as `send`.

        Raises:
            TypeError: it is not an exception.
        """
        self.exception_as(current_rank().rank, error)

    def exception_as(self, rank: int, error: BaseException) -> None:
        """`exception`, on behalf of another sender."""
        check_instance("error", error, BaseException, "an exception, such as ValueError('why')")
        send_failure(
            f"the sender with rank {rank}",
            error,
            lambda body, buffers: self._send(dumps((rank, None, (body, [bytes(buffer) for buffer in buffers])))),
        )

    def _send(self, packed: tuple[bytes, list[Any]]) -> None:
        runtime = current_runtime()
        where = f"a port of {self._home.host}"
        if not self._capacity:
            runtime.call(self._home, self._number, *packed, None)
            return
        flow = self._flow
        hold_s = None if asyncio._get_running_loop() is None else _HOLD_S
        while not flow.take(self._capacity):
            if runtime.engine.driving or not runtime.engine.wait(lambda: flow.num < self._capacity, hold_s):
                flow.take(self._capacity, forced=True)
                break
        if flow.refusal:
            flow.give()
            if self.return_undeliverable:
                raise PortClosed(where, flow.refusal)
            return

        def read(answer: Frame | MonarchError) -> None:
            if not isinstance(answer, Frame):
                flow.refusal = str(answer)
            elif answer.kind is not Kind.RESULT:
                flow.refusal = "its receiver was closed"
            flow.give()
            runtime.engine.wake_waiters()

        try:
            runtime.call(self._home, self._number, *packed, Slot(self._home.incarnation, where, read))
        except BaseException:
            flow.give()
            raise


class PortReceiver(Generic[T]):
    """The end to read from, in the process that opened it; iterating waits for each message.

    Closed with `close`, by ``with``, or when nobody holds it any more.
    """

    def __init__(self, inbox: PortInbox, *, ranked: bool) -> None:
        self._inbox = inbox
        self._ranked = ranked

    def recv(self) -> Receipt[T]:
        """A future of the next message. It takes one when it is read, not before.

        So a `get` that times out takes none, and futures that nobody reads do not either. One that has a
        callback, or that `concurrent.futures.wait` waits for, takes the next that comes unless it is cancelled.

        Its errors are those that were sent by `Port.exception`, and `PortClosed`.
        """
        return Receipt(self, self._inbox, ranked=self._ranked)

    def ranked(self) -> PortReceiver[tuple[int, T]]:
        """The same end, with the sender's rank beside each message: see `Channel.open`."""
        return cast("PortReceiver[tuple[int, T]]", _ReceiverView(self, self._inbox, ranked=True))

    def close(self) -> None:
        """Take no more: messages that were not read are lost."""
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
    """Another view of a receiver, which lives as long as this."""

    def __init__(self, receiver: PortReceiver[Any], inbox: PortInbox, *, ranked: bool) -> None:
        super().__init__(inbox, ranked=ranked)
        self._receiver = receiver


class Channel(Generic[T]):
    """Makes ports: ``port, receiver = Channel.open()``."""

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
            once: it takes one message and is closed.
            ranked: each message comes with the rank of its sender in the mesh that was called: ``(rank, message)``.
            capacity: how many messages of each sending process may wait to be read before its senders do. None
                bounds their bytes alone, by ``transport.mailbox_bytes``.

        Raises:
            RuntimeError: this process is not part of an allocation yet.
            TypeError: *capacity* is not a whole number, or a switch neither True nor False.
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
        """``open(ranked=True)``."""
        return Channel.open(once=once, ranked=True)
