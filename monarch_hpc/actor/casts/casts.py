"""A process's part in casts: when messages go through the agents, and who takes what comes through them."""

from __future__ import annotations

import _thread
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from monarch_hpc.actor.casts.receiver import CastReceiver, CastReceiverProcess
from monarch_hpc.actor.casts.sender import CastSender
from monarch_hpc.actor.casts.targets import Answered, CastRecord, CastSenderProcess, OpenCast, Reduce
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.shape import Region
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["Casts"]


class _Process(CastSenderProcess, CastReceiverProcess, Protocol):
    """What both need of their process."""


class Casts:
    """Both ends of casts, each made when it is needed: a process without casts pays for none."""

    def __init__(self, process: _Process) -> None:
        self.sender: CastSender | None = None
        """What sends casts, and all that goes directly from then on, so that they keep their order."""
        self.receiver: CastReceiver | None = None
        """What puts casts and direct messages in line; None while no cast has come."""
        self.max_direct = sys.maxsize
        """Messages to more procs than this go through the agents, see config key `transport.cast_direct`."""
        self._process = process
        self._addresses: Sequence[str] = ()
        self._on_channel: Callable[[FrameChannel], None] = lambda _channel: None
        self._making = _thread.allocate_lock()

    def route_through(
        self, addresses: Sequence[str], on_channel: Callable[[FrameChannel], None] = lambda _channel: None
    ) -> None:
        """Send messages to many procs to the agent that listens at *addresses*; *on_channel* is told of the channel."""
        self._addresses = addresses
        self._on_channel = on_channel
        self.max_direct = self._process.node.limits.cast_direct

    def open(self) -> CastSender:
        """What sends casts from here."""
        with self._making:
            if self.sender is None:
                self.sender = CastSender(self._process, self._addresses, self._on_channel)
        return self.sender

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
        record: CastRecord | None = None,
    ) -> OpenCast | None:
        """Send one message to many procs; None if each is to be sent it directly. See `CastSender.cast`."""
        if len(region) <= self.max_direct:
            return None
        return self.open().cast(kind, region, procs, message, where, answer, end_s, reduce, record)

    def direct(self, proc: ProcRef, line: MessageLink, frame: Frame, until_s: float | None = None) -> bool:
        """Send a message to one proc; see `MessageLink.send`."""
        if self.sender is not None:
            return self.sender.send(proc, line, frame, until_s)
        sent = line.send(frame, until_s)
        if self.sender is not None:  # another thread has made it meanwhile
            self.sender.sent(proc.incarnation)
        return sent

    def cancel(self, cast: OpenCast | None) -> None:
        """Tell those who have not answered a cast that nobody waits for them any more."""
        if cast is not None and self.sender is not None:
            self.sender.cancel(cast)

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

    def take(self, channel: MessageLink, frame: Frame) -> bool:
        """Take what belongs to casts, and messages that must wait for one.

        Raises:
            FrameError: it is not what its kind says.
        """
        kind = frame.kind
        if kind is Kind.NOTES:
            if self.sender is not None:
                self.sender.on_notes(frame)
            return True
        if kind is Kind.CAST or kind is Kind.MARK or kind is Kind.REDUCE:
            if self.receiver is None:
                self.receiver = CastReceiver(self._process, self._process.node.limits.mailbox_bytes)
            self.receiver.on_frame(channel, frame)
            return True
        return kind is not Kind.CANCEL and self.receiver is not None and self.receiver.take_direct(channel, frame)

    def on_answer(self, frame: Frame) -> None:
        """An answer that no call waits for; it may be one to a cast."""
        if self.sender is not None:
            self.sender.on_answer(frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """A channel is over."""
        if self.sender is not None:
            self.sender.on_lost(channel, error)
        if self.receiver is not None:
            self.receiver.on_lost(channel.peer.incarnation)

    def reports(self, proc: ProcRef) -> bool:
        """Whether a cast reports the death of a proc, or has done so."""
        return self.sender is not None and self.sender.reports(proc)
