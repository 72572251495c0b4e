"""Heartbeats: sends PINGs on channels and detects dead peers."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.core.errors import TransportError
from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Heartbeat"]


class Heartbeat:
    """Sends a PING on every watched channel and judges the liveness of those that are judged.

    A dead channel is given up, so that its listener's `on_lost` is called as for any other end.

    Args:
        heartbeat_s: between two PINGs, in seconds.
        changed: called on the driver when the liveness of a judged channel changes.
    """

    def __init__(
        self,
        engine: Engine,
        heartbeat_s: float,
        lease: Lease,
        changed: Callable[[FrameChannel, Liveness], None] = lambda _channel, _liveness: None,
    ) -> None:
        self._engine = engine
        self._heartbeat_s = heartbeat_s
        self._lease = lease
        self._changed = changed
        self._liveness: dict[FrameChannel, Liveness] = {}
        self._excused_s: dict[FrameChannel, float] = {}  # count as last received at this time
        self._unjudged: set[FrameChannel] = set()
        self._beat_s = engine.clock()
        self._timer = engine.call_later(heartbeat_s, self._beat)

    def watch(self, channel: FrameChannel, *, judged: bool = True) -> None:
        """Begin to send PINGs on *channel*; one that is not *judged* is never declared dead.

        Call this, like all methods, from engine callbacks only.
        """
        if judged:
            self._liveness.setdefault(channel, Liveness.ALIVE)
            self._unjudged.discard(channel)
        elif channel not in self._liveness:
            self._unjudged.add(channel)

    def forget(self, channel: FrameChannel) -> None:
        """Stop the heartbeat of *channel*; unknown channels are ignored."""
        self._liveness.pop(channel, None)
        self._excused_s.pop(channel, None)
        self._unjudged.discard(channel)

    def liveness(self, channel: FrameChannel) -> Liveness:
        """Liveness of *channel*; alive if it is not judged."""
        return self._liveness.get(channel, Liveness.ALIVE)

    def close(self) -> None:
        """Stop all heartbeats."""
        self._timer.cancel()
        self._liveness.clear()
        self._excused_s.clear()
        self._unjudged.clear()

    def _received_s(self, channel: FrameChannel) -> float:
        return max(channel.received_s, self._excused_s.get(channel, 0.0))

    def _beat(self) -> None:
        self._timer = self._engine.call_later(self._heartbeat_s, self._beat)
        now_s = self._engine.clock()
        late_s = now_s - self._beat_s - self._heartbeat_s
        self._beat_s = now_s
        # While this process was stopped or starved it read nothing: that time does not count against its peers. All
        # other silence does, so that a process which is always late still detects dead peers.
        if late_s > self._heartbeat_s:
            for channel in self._liveness:
                self._excused_s[channel] = min(self._received_s(channel) + late_s, now_s)
        for channel in [*self._liveness, *self._unjudged]:
            try:
                channel.send(Frame(Kind.PING))
            except TransportError:
                continue  # it has ended; on_lost follows
        for channel, before in list(self._liveness.items()):
            after = self._lease.next_state(before, self._received_s(channel), now_s)
            if after is before:
                continue
            self._liveness[channel] = after
            self._changed(channel, after)
            if after is Liveness.DEAD:
                channel.give_up(f"no heartbeat for {now_s - channel.received_s:.1f} s")
