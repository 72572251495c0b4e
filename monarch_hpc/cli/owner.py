"""The owner of a run: its channel to the head is what keeps the run's procs alive.

Apart from `run`, so that the program starts before the imports that a channel needs.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

from monarch_hpc.attach.attach import attach
from monarch_hpc.config import Config
from monarch_hpc.core.errors import ChannelClosed, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.supervision.lease import Lease
from monarch_hpc.telemetry.observer import Witness, open_witness
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.wire.calls import Calls, CallsReport, Recording
from monarch_hpc.wire.frames import Frame
from monarch_hpc.wire.messages import CloseRun, OpenRun, Refused, RunClosed, decode

__all__ = ["RunOwner"]


class RunOwner:
    """Holds a run open at the head of the allocation in *directory*.

    Args:
        changed: called from another thread when one of the attributes below changed.

    Attributes:
        lost: why the head is gone; empty while it is there.
        refusal: why the head does not take the run; empty if it does.
        closed: the head has said that nothing is left of the run.

    Raises:
        AllocationError, VersionMismatch, TransportError: as `attach`.
    """

    def __init__(self, directory: Path, run: str, title: str, config: Config, changed: Callable[[], None]) -> None:
        self.lost = ""
        self.refusal = ""
        self.closed = False
        self._run = run
        self._witnesses: list[Witness] = []  # of the programs of this run, as far as they are on this machine
        self._changed = changed
        self._engine = Engine()
        self._engine.start()
        try:
            self._attachment = attach(directory, Role.CONTROLLER, self, self._engine)
            lease = Lease(config.liveness.suspect_s, config.liveness.dead_s)
            pulse = Heartbeat(self._engine, config.liveness.heartbeat_s, lease)
            self._engine.call_soon(lambda: pulse.watch(self._attachment.channel))
            self._attachment.send(OpenRun(run, title, platform.node(), os.getpid(), owner=True))
        except BaseException:
            self._engine.close()
            raise

    def close(self, exit_code: int) -> None:
        """Ask the head to end what is left of the run; `closed` tells when it is done."""
        try:
            self._attachment.send(CloseRun(self._run, exit_code))
        except TransportError as error:
            self.lost = self.lost or str(error)

    def leave(self) -> None:
        """Close the channel; a run that is not closed ends with it."""
        self._attachment.node.close("the run is over")
        self._engine.close()
        for witness in self._witnesses:
            witness.close()

    def on_channel(self, channel: FrameChannel) -> None:
        """Nobody dials a run's owner."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Take the head's word."""
        match decode(frame.body):
            case RunClosed():
                self.closed = True
            case Calls(ticket=ticket):
                told = [told for witness in self._witnesses for told in witness.report()]
                self._attachment.send(CallsReport(ticket, told, []))
            case Recording() as recording:
                self._look_at(recording)
            case Refused(problem=problem, request="" | "OpenRun" | "CloseRun"):
                self.refusal = problem
            case _:
                return  # RunOpened; HostLost is the program's own business
        self._changed()

    def _look_at(self, recording: Recording) -> None:
        witness = open_witness(recording)
        if witness is not None:
            self._witnesses.append(witness)
            self._attachment.send(recording)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """The head is gone, unless we left it."""
        if isinstance(error, ChannelClosed):
            return
        self.lost = str(error)
        self._changed()
