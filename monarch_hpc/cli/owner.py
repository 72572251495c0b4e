"""The owner of a run, whose channel to the head keeps the run's procs alive.

Separate from `run`, so that the program starts before the modules that a channel needs are imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from monarch_hpc.allocation.ready import Ready
from monarch_hpc.attach.attach import attach
from monarch_hpc.attach.heir_search import seek_heir
from monarch_hpc.attach.owner_voice import OwnerVoice
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ChannelClosed, PeerLost, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.supervision.liveness import Lease
from monarch_hpc.telemetry.observer import RecordObserver, open_observer
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.heartbeat import Heartbeat
from monarch_hpc.wire.control.allocation import AllocationEnds, HostReturned
from monarch_hpc.wire.control.deadline import DeadlineNear
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import CloseRun, OpenRun, Recording, RunClosed, RunOpened
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame
from monarch_hpc.wire.tables.answer import answer

__all__ = ["RunOwner"]


class RunOwner:
    """Holds a run open at the head of the allocation in *directory*.

    Args:
        changed: called on another thread when one of the attributes below has changed.
        on_loss: see config key `run.on_loss`.

    Attributes:
        lost: why the head is gone; empty while it is connected.
        refusal: why the head refuses the run; empty if it does not.
        opened: the head has confirmed that this process owns the run.
        closed: the head has confirmed that nothing of the run is left.
        ending: why Slurm ends the allocation, as the head has said; None if it has not.
        deadline: the time that the program has after Slurm has sent SIGTERM to the job; has passed if it has not.

    Raises:
        AllocationError, VersionMismatch, TransportError: as `attach`.
    """

    def __init__(
        self, directory: Path, run: str, title: str, config: Config, changed: Callable[[], None], on_loss: str = "stop"
    ) -> None:
        self.lost = ""
        self.refusal = ""
        self.opened = self.closed = False
        self.ending: Death | None = None
        self.deadline = Deadline(0.0)
        self._directory = directory
        self._heir_s = config.liveness.fence_s + config.liveness.dead_s
        host, hold_s = os.uname().nodename, config.run.hold_s
        opening = OpenRun(run, title, host, os.getpid(), owner=True, on_loss=on_loss, hold_s=hold_s, votes=True)
        self._opening = opening
        self._closing: CloseRun | None = None
        self._num_hosts = 0
        self._seeks = False  # the head is gone, and its heir not found yet
        self._run = run
        self._observers: list[RecordObserver] = []  # one for each program of this run on this machine
        self._changed = changed
        self._engine = Engine()
        self._engine.start()
        try:
            self._attachment = attach(directory, Role.CONTROLLER, self, self._engine)
            lease = Lease(config.liveness.suspect_s, config.liveness.dead_s)
            self._pulse = Heartbeat(self._engine, config.liveness.heartbeat_s, lease)
            self._engine.call_soon(lambda: self._pulse.watch(self._attachment.channel))
            self._voice = OwnerVoice(self._attachment.node)
            self._attachment.send(self._opening)
        except BaseException:
            self._engine.close()
            raise

    def every(self, period_s: float, callback: Callable[[], None]) -> None:
        """Call *callback* every *period_s* seconds, on another thread, as long as the run is held open."""

        def again() -> None:
            callback()
            self._engine.call_later(period_s, again)

        self._engine.call_later(period_s, again)

    def close(self, exit_code: int) -> None:
        """Ask the head to end the rest of the run; `closed` becomes true when that is done."""
        self._closing = CloseRun(self._run, exit_code)
        try:
            self._attachment.send(self._closing)
        except TransportError as error:
            if not self._seeks:
                self.lost = self.lost or str(error)

    def leave(self) -> None:
        """Close the channel; a run that is still open ends with it."""
        self._attachment.node.close("the run is over")
        self._engine.close()
        for observer in self._observers:
            observer.close()

    def on_channel(self, channel: FrameChannel) -> None:
        """Never called: no process dials a run's owner."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Handle a message from the head."""
        message = decode(frame.body)
        if self._voice.take(channel, message, self._attachment.channel) or channel is not self._attachment.channel:
            return
        match message:
            case RunClosed():
                self.closed = True
            case Ask() as question:
                source = f"the program of run {self._run}"
                portions = [answer(question, source, observer.sources) for observer in self._observers]
                self._attachment.send(Rows(question.ticket, portions, [], []))
            case AllocationEnds(kind=kind, cause=cause):
                self.ending = Death(DeathKind.parse(kind), cause)
            case DeadlineNear(left_s=left_s, cause="SIGTERM"):
                self.deadline = Deadline(left_s)
            case Recording() as recording:
                self._observe(recording)
            case Refused(problem=problem, request="" | "OpenRun" | "CloseRun"):
                self.refusal = problem
            case RunOpened(epoch=epoch, member=member, hosts=hosts):
                self._num_hosts = max(self._num_hosts, len(hosts))
                self._voice.note_hosts(hosts)
                self._opening = replace(self._opening, epoch=epoch, member=member)
                self.opened = True
            case HostReturned(host=host):
                self._voice.note_hosts([host])
                return
            case _:
                return  # HostEnded is handled by the program itself
        self._changed()

    def _observe(self, recording: Recording) -> None:
        observer = open_observer(recording)
        if observer is not None:
            self._observers.append(observer)
            self._attachment.send(recording)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Record that the head is gone, unless this side closed the channel, or the head has an heir."""
        self._pulse.forget(channel)
        if isinstance(error, ChannelClosed) or channel is not self._attachment.channel:
            return
        self._seek(error)

    def _seek(self, error: TransportError) -> None:
        def failed() -> None:
            self.lost = str(error)
            self._changed()

        node, ready = self._attachment.node, self._attachment.ready
        self._seeks = seek_heir(
            node, self._directory, ready, self._num_hosts, error, self._heir_s, self._follow, failed
        )
        if self._seeks:
            self._voice.offer(ready.head)
        else:
            failed()

    def _follow(self, ready: Ready, channel: FrameChannel) -> None:
        """Open the run again at the head of a later term."""
        if not self._voice.follow(ready.term, channel.peer.incarnation):
            error = PeerLost(ready.head_name, "its term is over")
            channel.close(error.reason)
            self._seek(error)
            return
        self._seeks = False
        self._attachment = replace(self._attachment, ready=ready, channel=channel)
        self._pulse.watch(channel)
        with contextlib.suppress(TransportError):  # its end is reported
            self._attachment.send(self._opening)
            if self._closing is not None:
                self._attachment.send(self._closing)
