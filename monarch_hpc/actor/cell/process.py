"""The process interface that an actor needs."""

from __future__ import annotations

from typing import Protocol

from monarch_hpc.actor.cell.event_loop import EventLoop
from monarch_hpc.actor.cell.replies import Ending
from monarch_hpc.actor.context import ProcInfo
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["CellProcess"]


class CellProcess(Protocol):
    """The process interface that a `Cell` needs."""

    engine: Engine
    info: ProcInfo
    loop: EventLoop
    cells_drive: bool
    recorder: Recorder

    def reply(
        self,
        channel: MessageLink,
        slot: int,
        value: object,
        where: str = "",
        method: str = "",
        ending: Ending | None = None,
    ) -> None:
        """Answer a call."""
        ...

    def reply_failure(
        self, channel: MessageLink, slot: int, where: str, error: BaseException, ending: Ending | None = None
    ) -> None:
        """Answer a call with an exception."""
        ...

    def report(self, channel: MessageLink, owner: int, actor: int, failure: MeshFailure) -> None:
        """Report the failure of an actor to the process that spawned it."""
        ...

    def stop_owned(self, owner: int) -> None:
        """Stop everything that an actor has spawned."""
        ...

    def forget_actor(self, actor: int, where: str, cause: str) -> None:
        """Drop an actor that has ended, except for the cause that late callers get."""
        ...

    def exit_process(self, leaving: SystemExit) -> None:
        """End the process."""
        ...
