"""The actor side of a process: its actors, the calls it waits for, and the frames between them."""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import ClassVar

from monarch_hpc.actor.cell import Cell
from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.payload import pack_failure
from monarch_hpc.core.errors import ActorError, DeliveryUnknown, FrameError, MonarchError, TransportError
from monarch_hpc.transport.api import Channel
from monarch_hpc.transport.credit import cost_of
from monarch_hpc.transport.engine import Engine, Signal
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Buffer, Frame, Kind
from monarch_hpc.wire.serializer import dumps

__all__ = ["Answer", "ProcRef", "Runtime"]

_CALL = Kind.CALL  # on the way of every frame: a member of an enum costs ten times a global
_RESULT = Kind.RESULT
_FAILURE = Kind.FAILURE

_log = logging.getLogger(__name__)

Answer = Callable[[Frame | MonarchError], None]
"""Called on the driver with the RESULT or FAILURE frame of a call, or with why there is none."""


@dataclass(frozen=True, slots=True)
class ProcRef:
    """Where a proc is; may travel in messages.

    Attributes:
        rank: rank in its proc mesh.
        mesh: number of that mesh in its run.
        addresses: where it listens, ``tcp://address:port``, best first.
    """

    mesh: int
    rank: int
    host: str
    host_rank: int
    pid: int
    incarnation: int
    addresses: tuple[str, ...]


@dataclass(slots=True)
class _Slot:
    incarnation: int
    where: str
    answer: Answer


class Runtime:
    """Dispatches frames to actors and answers to callers; one per process.

    It is the `transport.api.Listener` of the process's node. Answers and deaths are reported on the
    driver; calls may come from any thread.
    """

    current: ClassVar[Runtime | None] = None
    """The runtime of this process, for references that arrive in messages."""

    def __init__(self, engine: Engine, info: ProcInfo) -> None:
        self.engine = engine
        self.info = info
        self._node: Node | None = None
        self._cells: dict[int, Cell] = {}
        self._slots: dict[int, _Slot] = {}
        self._next_slot = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_lock = threading.Lock()

    def bind(self, node: Node) -> None:
        """Use *node* for all channels."""
        self._node = node

    @property
    def node(self) -> Node:
        """The process's seat in the allocation."""
        assert self._node is not None, "bind() comes first"
        return self._node

    # ---- calls from here ----

    def channel_to(self, proc: ProcRef) -> Channel:
        """The channel to *proc*; connects if there is none, unless on the driver.

        Raises:
            TransportError: it cannot be reached.
        """
        channel = self.node.channels.get(proc.incarnation)
        if channel is not None and channel.error is None:
            return channel
        return self.node.connect(proc.addresses, proc.incarnation)

    def spawn(self, proc: ProcRef, actor: int, body: bytes, buffers: Sequence[Buffer]) -> None:
        """Make an actor in *proc*; a failing constructor shows at the first call.

        Raises:
            TransportError: the proc cannot be reached.
        """
        self.channel_to(proc).send(Frame(Kind.SPAWN, actor, 0, body, buffers))

    def stop(self, proc: ProcRef, actor: int) -> None:
        """End an actor after what is queued for it.

        Raises:
            TransportError: the proc cannot be reached.
        """
        self.channel_to(proc).send(Frame(Kind.STOP, actor))

    def call(
        self, proc: ProcRef, actor: int, where: str, body: bytes, buffers: Sequence[Buffer], answer: Answer | None
    ) -> None:
        """Send one call; *answer* is told exactly once how it ended. None sends and forgets.

        Args:
            where: the callee in words, for errors.

        Raises:
            FrameError: the call is over a limit; nothing was sent.
        """
        slot = 0
        if answer is not None:
            slot = next(self._next_slot)
            self._slots[slot] = _Slot(proc.incarnation, where, answer)
        try:
            self.channel_to(proc).send(Frame(Kind.CALL, actor, slot, body, buffers))
        except FrameError:
            self._slots.pop(slot, None)
            raise
        except TransportError as error:
            if slot:
                self._lost_slot(slot, error)
        except BaseException:
            self._slots.pop(slot, None)
            raise

    # ---- frames from elsewhere ----

    def on_channel(self, channel: Channel) -> None:
        """A channel that the other side opened; nothing to prepare."""

    def on_frame(self, channel: Channel, frame: Frame) -> None:
        """Dispatch one frame; on the driver."""
        kind = frame.kind
        if kind is _CALL:
            cell = self._cells.get(frame.dest)
            if cell is not None:
                cell.put(channel, frame)
                return
            channel.consumed(frame.dest, cost_of(frame))
            if frame.reply:
                gone = DeliveryUnknown(f"actor {frame.dest:x}", "this proc does not know it")
                self.reply_failure(channel, frame.reply, self.info.host, gone)
        elif kind is _RESULT or kind is _FAILURE:
            slot = self._slots.pop(frame.dest, None)
            if slot is not None:
                slot.answer(frame)
        elif kind is Kind.SPAWN:
            self._cells[frame.dest] = Cell(self, frame)
        elif kind is Kind.STOP:
            stopped = self._cells.get(frame.dest)
            if stopped is not None:
                stopped.stop()
        elif kind is Kind.CONTROL:
            self.on_control(channel, frame)

    def on_control(self, channel: Channel, frame: Frame) -> None:
        """A control message; procs expect none."""
        _log.warning("unexpected control message from %s", channel.peer)

    def on_lost(self, channel: Channel, error: TransportError) -> None:
        """A channel is over: whatever waits for it is told why."""
        incarnation = channel.peer.incarnation
        for number in [n for n, slot in self._slots.items() if slot.incarnation == incarnation]:
            self._lost_slot(number, error)

    def _lost_slot(self, number: int, error: TransportError) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self.explain(slot.incarnation, slot.where, error, slot.answer)

    def explain(self, incarnation: int, where: str, error: TransportError, tell: Callable[[ActorError], None]) -> None:
        """Say why a call to a lost proc has no answer; who hears of deaths says more."""
        unknown = DeliveryUnknown(where, str(error))
        unknown.__cause__ = error
        tell(unknown)

    # ---- for the cells ----

    def reply(self, channel: Channel, slot: int, value: object) -> None:
        """Answer a call."""
        try:
            body, buffers = dumps(value)
        except Exception as error:  # noqa: BLE001 pickling runs user code; the caller is told
            unsent = TypeError(f"the result, a {type(value).__name__}, cannot be sent: {type(error).__name__}: {error}")
            self.reply_failure(channel, slot, self.info.host, unsent)
            return
        try:
            self._answer(channel, Frame(Kind.RESULT, slot, 0, body, buffers))
        except FrameError as error:
            self.reply_failure(channel, slot, self.info.host, error)

    def reply_failure(self, channel: Channel, slot: int, where: str, error: BaseException) -> None:
        """Answer a call with an exception."""
        body, buffers = pack_failure(where, error)
        self._answer(channel, Frame(Kind.FAILURE, slot, 0, body, buffers))

    def _answer(self, channel: Channel, frame: Frame) -> None:
        try:
            channel.send(frame)
        except FrameError:
            raise  # the caller still waits
        except TransportError as error:
            # The caller is told by its own side of the channel.
            _log.info("an answer found no caller: %s", error)

    def run_coroutine(self, coroutine: Coroutine[object, object, object]) -> object:
        """Run *coroutine* on the proc's event loop, in this thread's context, and wait for it."""
        with self._loop_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="monarch-asyncio", daemon=True).start()
        outcome: list[asyncio.Task[object]] = []
        done = Signal(self.engine)

        def finish(task: asyncio.Task[object]) -> None:
            outcome.append(task)
            done.set()

        def begin() -> None:
            loop = self._loop
            assert loop is not None
            loop.create_task(coroutine, context=here).add_done_callback(finish)

        here = contextvars.copy_context()
        self._loop.call_soon_threadsafe(begin)
        done.wait()
        return outcome[0].result()

    def exit(self, code: int) -> None:
        """End the process at once, with what was printed."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
