"""The way of a process's casts into one allocation: a channel to an agent there, and the credit on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.credit import Credit

__all__ = ["CastRoute"]

_ASK_S = 1.0
"""Longest wait for the agent's answer whether it can map memory; without it, the memory is sent."""

_log = Logger(__name__)


class CastRoute:
    """Casts to the procs of one run on one allocation; for any thread.

    Args:
        addresses: those of the agent at which the casts enter.
        run: the run on *allocation*.
        on_channel: called with the channel to that agent.

    Attributes:
        channel: to that agent; None before the first cast.
        credit: of the casts that some callee has not handled.
    """

    def __init__(
        self,
        connections: Connections,
        addresses: Sequence[str],
        allocation: str,
        run: str,
        on_channel: Callable[[FrameChannel], None],
    ) -> None:
        self.allocation = allocation
        self.run = run
        self.channel: FrameChannel | None = None
        self.credit = Credit(connections.node.limits.mailbox_bytes, connections.engine.wake_waiters)
        self._connections = connections
        self._addresses = addresses
        self._on_channel = on_channel

    @property
    def broken(self) -> bool:
        """Whether there is no channel to the agent now."""
        return self.channel is None or self.channel.error is not None

    def connect(self) -> bool:
        """Ensure a channel to the agent; False if there is none and none can be opened now.

        Raises:
            EngineFailed: this process cannot communicate any more.
        """
        self._connections.engine.check_works()
        if self.broken:
            if self._connections.engine.driving:
                return False
            try:
                # A separate channel: control messages must not wait behind user data.
                self.channel = self._connections.node.connect(self._addresses, allocation=self.allocation)
            except TransportError as error:
                _log.warning("no casts through the agents, but one message for each proc: %s", error)
                return False
            self._on_channel(self.channel)
        return True

    def shares(self) -> bool:
        """Whether the agent can map memory of this process; asked once for each channel."""
        channel, engine = self.channel, self._connections.engine
        if channel is None:
            return False
        sharing = channel.sharing
        if not sharing.asked and not engine.driving:
            answered: list[bool] = []

            def take() -> None:
                answered.append(True)
                engine.wake_waiters()

            sharing.ask(take)
            engine.wait(lambda: bool(answered), _ASK_S)
        return sharing.agreed
