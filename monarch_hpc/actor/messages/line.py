"""The link interface that actors use, and the loopback link: no socket, but the same guarantees as a channel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from monarch_hpc.actor.context import context
from monarch_hpc.transport.credit import Credit, cost_of, take_credit
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.own import OwnMemories
from monarch_hpc.transport.memory.peer import MemoryPeer
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.wire.frames import Frame, Kind, copy_of

__all__ = ["LoopbackLink", "MessageLink", "ProcLink"]

_CALL = Kind.CALL  # on the path of every frame: an enum member costs ten times a global
_RESULT = Kind.RESULT
_FAILURE = Kind.FAILURE


class MessageLink(Protocol):
    """The channel interface that actors need."""

    mark: int
    """Identifies the peer in the records of this process, see `telemetry.recorder`; 0 at first."""

    @property
    def peer(self) -> object:
        """The process at the other end."""
        ...

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Send *frame*; see `transport.api.FrameChannel.send`."""
        ...

    def consumed(self, dest: int, cost: int) -> None:
        """Return the credit of a call that was handled; see `transport.api.FrameChannel.consumed`."""
        ...

    def retire(self, dest: int) -> None:
        """Return the credit of an actor that has ended; see `transport.api.FrameChannel.retire`."""
        ...


class ProcLink(MessageLink, Protocol):
    """The link to a process, which may be this one: messages, and memory that was registered there."""

    @property
    def memory(self) -> MemoryPeer:
        """The registered memory of the process; see `transport.api.FrameChannel.memory`."""
        ...

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Read registered memory of the process; see `transport.api.FrameChannel.get`."""
        ...

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Write registered memory of the process; see `transport.api.FrameChannel.put`."""
        ...


class LoopbackLink:
    """Delivers messages between actors of this process, and gives them its registered memory.

    Calls are delivered on the sending thread, so that the calls of one thread keep their order; answers on the driver,
    like all answers. Buffers are copied: a payload belongs to its receiver, and an array that two actors shared would
    change under both.

    Args:
        deliver: takes each frame.
        window_bytes: bytes that may be queued for one actor before its senders block.
        memory: the registered memory of this process.
    """

    def __init__(
        self, engine: Engine, deliver: Callable[[MessageLink, Frame], None], window_bytes: int, memory: OwnMemories
    ) -> None:
        self._engine = engine
        self._deliver = deliver
        self.memory = memory
        self._credit = Credit(window_bytes, engine.wake_waiters)
        self.mark = 0

    @property
    def peer(self) -> str:
        """The process at the other end."""
        return "this process"

    def send(self, frame: Frame, end_s: float | None = None) -> bool:
        """Deliver a copy of *frame*; block while the callee's mailbox is full, until *end_s* at most."""
        kind = frame.kind
        copy = Frame(kind, frame.dest, frame.reply, frame.body, [copy_of(buffer) for buffer in frame.buffers])
        if kind is _RESULT or kind is _FAILURE:
            self._engine.call_soon(partial(self._deliver, self, copy))
            return True
        if kind is _CALL:
            cost = cost_of(copy)
            if not self._credit.try_take(frame.dest, cost) and not self._wait_for_credit(frame.dest, cost, end_s):
                return False
        self._deliver(self, copy)
        return True

    def _wait_for_credit(self, dest: int, cost: int, end_s: float | None) -> bool:
        if context().actor == dest:  # an actor that waited for room in its own mailbox would wait forever
            self._credit.take(dest, cost)
            return True
        return take_credit(self._engine, self._credit, dest, cost, end_s)

    def get(self, key: bytes, offset: int, into: object) -> Transfer:
        """Copy registered memory of this process to *into*; done on return."""
        return self.memory.memories.get(key, offset, into)

    def put(self, key: bytes, offset: int, data: object) -> Transfer:
        """Copy *data* to registered memory of this process; done on return."""
        return self.memory.memories.put(key, offset, data)

    def consumed(self, dest: int, cost: int) -> None:
        """Return the credit of a call that was handled; blocked senders may continue."""
        grant = self._credit.consumed(dest, cost)
        if grant:
            self._credit.give(dest, grant)

    def retire(self, dest: int) -> None:
        """Return the credit of an actor that has ended."""
        self._credit.give(dest, self._credit.retire(dest))
