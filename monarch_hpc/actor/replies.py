"""How calls are answered."""

from __future__ import annotations

import logging

from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.local import Line
from monarch_hpc.actor.payload import pack_failure, pack_fault, pack_result
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Replier"]

_log = logging.getLogger(__name__)


class Replier:
    """Who answers calls in this process.

    Attributes:
        info: of the process.
    """

    info: ProcInfo

    def report(self, channel: Line, owner: int, actor: int, failure: MeshFailure) -> None:
        """Tell who spawned *actor* that it failed."""
        body, buffers = pack_fault(actor, failure)
        self.answer(channel, Frame(Kind.FAILURE, 0, owner, body, buffers))

    def reply(self, channel: Line, slot: int, value: object, where: str = "", method: str = "") -> None:
        """Answer a call.

        Args:
            where, method: the actor in words and its endpoint, for a result that cannot travel.
        """
        try:
            body, buffers = pack_result(value)
            self.answer(channel, Frame(Kind.RESULT, slot, 0, body, buffers))
        except (TypeError, FrameError) as error:
            self.reply_failure(channel, slot, f"{where or self.info.host}, endpoint {method}", error)

    def reply_failure(self, channel: Line, slot: int, where: str, error: BaseException) -> None:
        """Answer a call with an exception."""
        body, buffers = pack_failure(where, error)
        self.answer(channel, Frame(Kind.FAILURE, slot, 0, body, buffers))

    def answer(self, channel: Line, frame: Frame) -> None:
        """Send *frame*, if anybody is still there.

        Raises:
            FrameError: it is over a limit; the caller still waits.
        """
        try:
            channel.send(frame)
        except FrameError:
            raise
        except TransportError as error:
            # The caller is told by its own side of the channel.
            _log.info("an answer found no caller: %s", error)
