"""One process's side of casts: decides which messages go through the agents, and dispatches those that arrive."""

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
    """The process interface that sender and receiver need."""


class Casts:
    """Sender and receiver of casts, each created at first use: a process without casts pays for neither."""

    def __init__(self, process: _Process) -> None:
        self.sender: CastSender | None = None
        """Sends casts, and then direct messages too, so that both keep their order; None before the first cast."""
        self.receiver: CastReceiver | None = None
        """Merges casts and direct messages into one order; None until the first cast arrives."""
        self.max_direct = sys.maxsize
        """Messages to more procs than this go through the agents; see config key `transport.cast_direct`."""
        self._process = process
        self._addresses: Sequence[str] = ()
        self._on_channel: Callable[[FrameChannel], None] = lambda _channel: None
        self._making = _thread.allocate_lock()

    def route_through(
        self, addresses: Sequence[str], on_channel: Callable[[FrameChannel], None] = lambda _channel: None
    ) -> None:
        """Send messages to many procs through the agent at *addresses*; *on_channel* gets the channel to that agent."""
        self._addresses = addresses
        self._on_channel = on_channel
        self.max_direct = self._process.node.limits.cast_direct

    def open(self) -> CastSender:
        """Return the sender; create it if this is the first cast."""
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
        """Send one message to many procs; None if the caller must send it to each directly. See `CastSender.cast`."""
        if len(region) <= self.max_direct:
            return None
        return self.open().cast(kind, region, procs, message, where, answer, end_s, reduce, record)

    def direct(self, proc: ProcRef, line: MessageLink, frame: Frame, until_s: float | None = None) -> bool:
        """Send a message to one proc; see `MessageLink.send`."""
        if self.sender is not None:
            return self.sender.send(proc, line, frame, until_s)
        sent = line.send(frame, until_s)
        if self.sender is not None:  # another thread has created it meanwhile
            self.sender.sent(proc.incarnation)
        return sent

    def cancel(self, cast: OpenCast | None) -> None:
        """Cancel a cast at the callees that have not answered yet."""
        if cast is not None and self.sender is not None:
            self.sender.cancel(cast)

    def spawn(
        self, region: Region, procs: Mapping[int, ProcRef], actor: int, body: bytes, buffers: Sequence[Buffer]
    ) -> bool:
        """Spawn an actor in many procs; False if the caller must send SPAWN to each directly.

        Only the program casts spawns: it has channels to all procs, and so detects their deaths. Any other process
        would have to open those channels, and may then as well use them.
        """
        if self._process.node.identity.role is not Role.CONTROLLER:
            return False
        by_rank = {proc.rank: proc for proc in procs.values()}
        message = actor, body, buffers
        return self.send(Kind.SPAWN, region, by_rank, message, lambda _place: f"actor {actor:x}", None) is not None

    def stop(self, region: Region, procs: Mapping[int, ProcRef], actor: int, answer: Answered) -> bool:
        """Stop an actor in many procs; False if the caller must send STOP to each directly."""

        def where(place: int) -> str:
            return f"the end of actor {actor:x} on {procs[region.base_rank(place)].host}"

        return self.send(Kind.STOP, region, procs, (actor, b"", ()), where, answer) is not None

    def take(self, channel: MessageLink, frame: Frame) -> bool:
        """Take frames of casts, and direct messages that must wait for a cast; False for all other frames.

        Raises:
            FrameError: the frame is malformed.
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
        """Take an answer that matches no direct call; it may answer a cast."""
        if self.sender is not None:
            self.sender.on_answer(frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel."""
        if self.sender is not None:
            self.sender.on_lost(channel, error)
        if self.receiver is not None:
            self.receiver.on_lost(channel.peer.incarnation)

    def reports(self, proc: ProcRef) -> bool:
        """Whether a cast reports the death of a proc, or has reported it."""
        return self.sender is not None and self.sender.reports(proc)
