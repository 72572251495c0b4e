"""Response ports that were sent to another actor, and the way of their answers back to the call."""

from __future__ import annotations

import queue
from _thread import RLock
from collections.abc import Callable
from typing import Any

from monarch_hpc.actor.cell.response_port import Answered, ResponsePort
from monarch_hpc.actor.ports.inbox import PortInbox
from monarch_hpc.actor.ports.port import Port
from monarch_hpc.actor.ports.receipt import unpack_message
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.errors import PortClosed
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.wire.frames import Frame
from monarch_hpc.wire.serializer import reduce_in_messages

__all__ = ["SentResponsePort", "send_response_ports"]


class SentResponsePort:
    """A response port that came in a message; it can be sent on.

    Args:
        port: takes the answers.
        rank: rank of the called actor in the mesh that was called.
    """

    __slots__ = ("_port", "_rank")

    def __init__(self, port: Port[Any], rank: int) -> None:
        self._port = port
        self._rank = rank

    def __reduce__(self) -> tuple[object, ...]:
        return SentResponsePort, (self._port, self._rank)

    def send(self, value: object) -> None:
        """Answer with *value*; see `ResponsePort`."""
        self._port.send_as(self._rank, value)

    def exception(self, error: BaseException) -> None:
        """Answer with an exception, which is raised at the caller."""
        self._port.exception_as(self._rank, error)


class _Forwarder:
    """Passes answers to their calls, on a thread that the first one starts: unpickling runs user code."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._thread: Thread | None = None
        self._queue: queue.SimpleQueue[tuple[Answered, Frame, PortInbox]] = queue.SimpleQueue()

    def put(self, call: Answered, frame: Frame, inbox: PortInbox) -> None:
        """Answer *call* with the message in *frame* soon."""
        self._queue.put((call, frame, inbox))
        with self._lock:
            if self._thread is None or not self._thread.alive:  # a fork has no threads
                self._thread = Thread(self._run)

    def _run(self) -> None:
        while True:
            call, frame, inbox = self._queue.get()
            try:
                call.succeed(unpack_message(frame)[1])
            except BaseException as error:  # noqa: BLE001 sent as the answer, or raised while unpickling
                call.refuse(error)
            inbox.close("the call is answered")


_forwarder = _Forwarder()


def _forward(call: Answered) -> tuple[Port[Any], Callable[[], None]]:
    """Open a port of this process whose first message answers *call*; return it, and what closes it soon.

    The latter may be called under any lock.
    """
    runtime = current_runtime()
    number = new_incarnation()
    inbox = PortInbox(runtime, number, once=False)

    def claim(given: Frame | PortClosed) -> bool:
        if isinstance(given, Frame):
            _forwarder.put(call, given, inbox)
        return True

    inbox.queue(claim)
    return Port(runtime.own, number, 0), lambda: runtime.engine.call_soon(lambda: inbox.close("it was not sent"))


def _reduce(port: ResponsePort) -> tuple[Any, ...]:
    return SentResponsePort, port.pass_on(_forward)


def send_response_ports() -> None:
    """Let messages of this process carry response ports; those that arrive are `SentResponsePort`."""
    reduce_in_messages(ResponsePort, _reduce)
