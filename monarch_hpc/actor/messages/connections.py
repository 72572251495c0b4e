"""The connections of a process: its node, its address, and the links to other processes and to itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from monarch_hpc.actor.messages.line import LoopbackLink, MessageLink, ProcLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.recent import Recent
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame

__all__ = ["Connections"]

_KEEP_LOST = 4096
"""Number of lost channels that are remembered: a message that another process passes on may arrive after the loss of
its sender, by seconds at most."""


class Connections:
    """The links of one process; `bind` comes before all other use.

    Args:
        deliver: takes each frame that the process sends to itself.

    Attributes:
        channels: links to other processes by incarnation; those that have ended may still be among them.
        lost: why the latest channels that were lost have ended, by incarnation.
        loopback: the link to this process; None in a forked child.
        find_allocation: called with an allocation that this process does not belong to, before one of its procs is
            dialled; may make the process belong to it.
    """

    def __init__(self, engine: Engine, deliver: Callable[[MessageLink, Frame], None]) -> None:
        self.engine = engine
        self.channels: Mapping[int, FrameChannel] = {}
        self.lost: Recent[int, TransportError] = Recent(_KEEP_LOST)
        self.loopback: LoopbackLink | None = None
        self.find_allocation: Callable[[str], object] = lambda _allocation: None
        self._deliver = deliver
        self._node: Node | None = None
        self._own: ProcRef | None = None

    def bind(self, node: Node, own: ProcRef, mark: int) -> None:
        """Use *node* for all channels.

        Args:
            own: the address under which other processes reach this one.
            mark: this process in its own records, see `telemetry.recorder`.
        """
        self._node = node
        self._own = own
        self.channels = node.channels
        self.loopback = LoopbackLink(self.engine, self._deliver, node.limits.mailbox_bytes, node.own_memory)
        self.loopback.mark = mark

    def drop(self) -> None:
        """In a forked child: drop the links of the parent; their use raises `ForkedError`."""
        self.channels, self.loopback = {}, None

    def loss_of(self, incarnation: int) -> TransportError | None:
        """Why a process that had a channel to this one has none any more; None if it has one, or never had one."""
        channel = self.channels.get(incarnation)
        return self.lost.get(incarnation) if channel is None or channel.error is not None else None

    @property
    def node(self) -> Node:
        """The node, which holds the channels."""
        assert self._node is not None, "bind() comes first"
        self.engine.check_own()
        return self._node

    @property
    def own(self) -> ProcRef:
        """The address of this process."""
        assert self._own is not None, "bind() comes first"
        return self._own

    def line_to(self, proc: ProcRef) -> ProcLink:
        """Return the link to *proc*; connect if there is none, unless on the driver. Loopback for this process itself.

        Raises:
            TransportError: the proc cannot be reached.
            EngineFailed: this process cannot communicate any more.
        """
        if self.engine.failure is not None:
            self.engine.check_works()  # a lost channel would go unnoticed, and queued frames unsent
        channel = self.node.channels.get(proc.incarnation)
        if channel is not None and channel.error is None:
            return channel
        if self.loopback is not None and proc.incarnation == self.node.identity.incarnation:
            return self.loopback
        if not self.node.belongs(proc.allocation) and not self.engine.driving:
            self.find_allocation(proc.allocation)
        return self.node.connect(proc.addresses, proc.incarnation, allocation=proc.allocation)

    def reach(self, proc: ProcRef, done: Callable[[ProcLink | TransportError], None]) -> None:
        """Call *done* with the link to *proc*, or with the reason why it cannot be reached; from any thread.

        It is called at once if there is a link, else on the driver.
        """
        channel = self.node.channels.get(proc.incarnation)
        if channel is not None and channel.error is None:
            done(channel)
        elif self.loopback is not None and proc.incarnation == self.node.identity.incarnation:
            done(self.loopback)
        else:
            try:
                if not self.node.belongs(proc.allocation) and not self.engine.driving:
                    self.find_allocation(proc.allocation)
            except TransportError as error:
                done(error)
                return
            dial = partial(self.node.dial, proc.addresses, proc.incarnation, done, proc.allocation)
            self.engine.call_soon(dial)

    def open_line(self, incarnation: int) -> MessageLink | None:
        """The link to a process, which may be this one; None if there is none now."""
        own = incarnation == self.node.identity.incarnation
        return self.loopback if own else self.channels.get(incarnation)

    def lines(self) -> list[MessageLink]:
        """All links."""
        loopback: list[MessageLink] = [] if self.loopback is None else [self.loopback]
        return [*loopback, *self.channels.values()]
