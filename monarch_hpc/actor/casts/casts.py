"""A process's part in casts: when messages go through the agents, and who takes what comes through them."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from monarch_hpc.actor.casts.receiver import CastReceiver, ReceptionProcess
from monarch_hpc.actor.casts.sender import CastSender
from monarch_hpc.actor.casts.targets import Answered, CastingNode, CastRecord, OpenCast, Reduce
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.shape import Region
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["Casts"]


class _Process(CastingNode, ReceptionProcess, Protocol):
    """What both need of their process."""


class Casts:
    """Both ends of casts, each made when it is needed: a process without casts pays for none."""

    def __init__(self, process: _Process) -> None:
        self.caster: CastSender | None = None
        """What sends casts, and all that goes directly from then on, so that they keep their order."""
        self.reception: CastReceiver | None = None
        """What puts casts and direct messages in line; None while no cast has come."""
        self.most_direct = sys.maxsize
        """Messages to more procs than this go through the agents, see config key `transport.cast_direct`."""
        self._process = process
        self._addresses: Sequence[str] = ()
        self._attend: Callable[[FrameChannel], None] = lambda _channel: None
        self._making = _thread.allocate_lock()

    def through(self, addresses: Sequence[str], attend: Callable[[FrameChannel], None] = lambda _channel: None) -> None:
        """Send messages to many procs to the agent that listens at *addresses*; *attend* is told of the channel."""
        self._addresses = addresses
        self._attend = attend
        self.most_direct = self._process.node.limits.cast_direct

    def open(self) -> CastSender:
        """What sends casts from here."""
        with self._making:
            if self.caster is None:
                self.caster = CastSender(self._process, self._addresses, self._attend)
        return self.caster

    def send(
        self,
        kind: Kind,
        region: Region,
        procs: Mapping[int, ProcRef],
        message: tuple[int, bytes, Sequence[Buffer]],
        where: Callable[[int], str],
        answer: Answered | None,
        end_s: float | None = None,
        reduce: Reduce | None = None,
        written: CastRecord | None = None,
    ) -> OpenCast | None:
        """Send one message to many procs; None if each is to be sent it directly. See `CastSender.cast`."""
        if len(region) <= self.most_direct:
            return None
        return self.open().cast(kind, region, procs, message, where, answer, end_s, reduce, written)

    def direct(self, proc: ProcRef, line: MessageLink, frame: Frame, until_s: float | None = None) -> bool:
        """Send a message to one proc; see `MessageLink.send`."""
        if self.caster is not None:
            return self.caster.send(proc, line, frame, until_s)
        sent = line.send(frame, until_s)
        if self.caster is not None:  # another thread has made it meanwhile
            self.caster.sent(proc.incarnation)
        return sent

    def cancel(self, cast: OpenCast | None) -> None:
        """Tell those who have not answered a cast that nobody waits for them any more."""
        if cast is not None and self.caster is not None:
            self.caster.cancel(cast)

    def spawn(
        self, region: Region, procs: Mapping[int, ProcRef], actor: int, body: bytes, buffers: Sequence[Buffer]
    ) -> bool:
        """Make an actor in many procs; False if each is to be told directly.

        The program has channels to all procs, and so hears of their deaths. Others have to open them, and then may as
        well use them.
        """
        if self._process.node.identity.role is not Role.CONTROLLER:
            return False
        by_rank = {proc.rank: proc for proc in procs.values()}
        message = actor, body, buffers
        return self.send(Kind.SPAWN, region, by_rank, message, lambda _place: f"actor {actor:x}", None) is not None

    def stop(self, region: Region, procs: Mapping[int, ProcRef], actor: int, answer: Answered) -> bool:
        """End an actor in many procs; False if each is to be told directly."""

        def where(place: int) -> str:
            return f"the end of actor {actor:x} on {procs[region.base_rank(place)].host}"

        return self.send(Kind.STOP, region, procs, (actor, b"", ()), where, answer) is not None

    def takes(self, channel: MessageLink, frame: Frame) -> bool:
        """Take what belongs to casts, and messages that must wait for one.

        Raises:
            FrameError: it is not what its kind says.
        """
        kind = frame.kind
        if kind is Kind.NOTES:
            if self.caster is not None:
                self.caster.on_notes(frame)
            return True
        if kind is Kind.CAST or kind is Kind.MARK or kind is Kind.REDUCE:
            if self.reception is None:
                self.reception = CastReceiver(self._process, self._process.node.limits.mailbox_bytes)
            self.reception.on_frame(channel, frame)
            return True
        return kind is not Kind.CANCEL and self.reception is not None and self.reception.held(channel, frame)

    def on_answer(self, frame: Frame) -> None:
        """An answer that no call waits for; it may be one to a cast."""
        if self.caster is not None:
            self.caster.on_answer(frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """A channel is over."""
        if self.caster is not None:
            self.caster.on_lost(channel, error)
        if self.reception is not None:
            self.reception.on_lost(channel.peer.incarnation)

    def reports(self, proc: ProcRef) -> bool:
        """Whether a cast reports the death of a proc, or has done so."""
        return self.caster is not None and self.caster.reports(proc)
