"""How calls are answered."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.fault import MeshFailure, print_error
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import pack_fault, pack_result, send_failure
from monarch_hpc.core.description import trace_of
from monarch_hpc.core.errors import ForkedError, FrameError, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["Ending", "Replier"]

_log = Logger(__name__)

_CODE: Any = vars(SystemExit)["code"]
"""A subclass may have an attribute of that name that does anything."""


class Ending(Protocol):
    """Writes down how a call ends, before its caller can know."""

    def end(self, num_bytes: int, /) -> None:
        """With an answer of so many bytes; 0 where nobody waits for one."""
        ...

    def fail(self, num_bytes: int, /) -> None:
        """With an exception of so many bytes. No-op for a call that has ended."""
        ...


class Replier:
    """Who answers calls in this process.

    Attributes:
        info: of the process.
    """

    info: ProcInfo
    engine: Engine

    def exit_process(self, leaving: SystemExit) -> NoReturn:
        """End the process at once, with what was printed and the status that Python would give it."""
        code = _CODE.__get__(leaving)
        status = 0 if code is None else int.__and__(code, 0xFF) if issubclass(type(code), int) else 1
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # users may have replaced them, or closed them
            os._exit(status)

    def report(self, channel: MessageLink, owner: int, actor: int, failure: MeshFailure) -> None:
        """Tell who spawned *actor* that it failed."""
        body, buffers = pack_fault(actor, failure)
        self.answer(channel, Frame(Kind.FAILURE, 0, owner, body, buffers))

    def reply(
        self,
        channel: MessageLink,
        slot: int,
        value: object,
        where: str = "",
        method: str = "",
        ending: Ending | None = None,
    ) -> None:
        """Answer a call.

        Args:
            where, method: the actor in words and its endpoint, for a result that cannot travel.
            ending: of a call whose end is to be written down.
        """
        try:
            body, buffers = pack_result(value)
            if ending is not None:
                ending.end(_size(body, buffers) if buffers else len(body))
            self.answer(channel, Frame(Kind.RESULT, slot, 0, body, buffers))
        except Exception as error:  # noqa: BLE001 it does not pickle, is too large, or memory is short: the caller is told
            self.reply_failure(channel, slot, f"{where or self.info.host}, endpoint {method}", error, ending)

    def reply_failure(
        self, channel: MessageLink, slot: int, where: str, error: BaseException, ending: Ending | None = None
    ) -> None:
        """Answer a call with an exception, or with as much of it as can be sent; otherwise as `reply`."""
        if self.engine.forked_from:
            print_error(trace_of(error))
            self.exit_process(SystemExit(1))

        def send(body: Buffer, buffers: Sequence[Buffer]) -> None:
            if ending is not None:
                ending.fail(_size(body, buffers))
            self.answer(channel, Frame(Kind.FAILURE, slot, 0, body, buffers))

        send_failure(where, error, send)

    def answer(self, channel: MessageLink, frame: Frame) -> None:
        """Send *frame*, if anybody is still there.

        Raises:
            FrameError: it is over a limit; the caller still waits.
        """
        if self.engine.forked_from:
            print_error(f"{ForkedError(self.engine.forked_from)}; an endpoint goes on in its process alone")
            self.exit_process(SystemExit(1))
        try:
            channel.send(frame)
        except FrameError:
            raise
        except TransportError as error:
            # The caller is told by its own side of the channel.
            _log.info("an answer found no caller: %s", error)


def _size(body: Buffer, buffers: Sequence[Buffer]) -> int:
    return len(body) + sum(memoryview(buffer).nbytes for buffer in buffers)
