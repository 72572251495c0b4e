"""Sends casts, one frame into the agents' tree each, in one order with direct messages."""

from __future__ import annotations

import contextlib
import sys
from _thread import RLock
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from monarch_hpc.actor.casts.open_casts import OpenCasts
from monarch_hpc.actor.casts.route import CastRoute
from monarch_hpc.actor.casts.targets import Answered, CastMessage, CastTarget, CastTargets, Delivery, OpenCast
from monarch_hpc.actor.cell.cancellation import limited
from monarch_hpc.actor.messages.causes import Causes
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.incarnations import CurrentProcs
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.shape import Region
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.api import FabricKind, FrameChannel
from monarch_hpc.transport.credit import cost_of, take_credit
from monarch_hpc.transport.sharing import copy_to_share, is_shareable
from monarch_hpc.wire.casts import Cast, Mark, pack_cast, pack_number
from monarch_hpc.wire.frames import Buffer, Frame, Kind, copy_of, size_of

__all__ = ["CastSender"]

_AGAIN_S = 0.001  # retry delay of the driver, which must not block while another thread is sending a cast

_log = Logger(__name__)


class CastSender:
    """Sends casts, and direct messages too, so that both arrive in the order in which they were sent.

    For any thread; ends of channels are handled on the driver.

    Args:
        on_failure: called after the failure of a call was handled.

    Attributes:
        max_direct: messages to more procs than this go through the agents; see config key `transport.cast_direct`.
        in_flight: the casts that some callee has not answered or not handled.
        num_sent: number of casts sent so far.
        num_waiting: number of threads blocked by a full mailbox.
    """

    def __init__(
        self, connections: Connections, recorder: Recorder, causes: Causes, on_failure: Callable[[], None]
    ) -> None:
        self.max_direct = sys.maxsize
        self.in_flight = OpenCasts(connections, recorder, causes, on_failure)
        self._open = self.in_flight.casts
        self.num_sent = 0
        self.num_waiting = 0
        self._connections = connections
        self._recorder = recorder
        self._shared_bytes = 0
        self._routes: dict[str, CastRoute] = {}  # by allocation
        self._lock = RLock()  # held while a cast is numbered and sent
        self._sending = False
        self._targets = CastTargets()
        self._direct: set[int] = set()  # procs that were sent direct messages since the last cast to them
        self.sent = self._direct.add
        """Called with the incarnation of a proc after each direct message to it, which no later cast may overtake."""

    def route_through(
        self,
        addresses: Sequence[str],
        allocation: str,
        run: str,
        on_channel: Callable[[FrameChannel], None] = lambda _channel: None,
    ) -> None:
        """Send messages to many procs of an allocation through its agent at *addresses*; before this, directly.

        Args:
            allocation: the allocation of that agent.
            run: the run on it.
            on_channel: called with the channel to that agent.
        """
        limits = self._connections.node.limits
        self._routes[allocation] = CastRoute(self._connections, addresses, allocation, run, on_channel)
        self.max_direct = limits.cast_direct
        self._shared_bytes = limits.cast_shared_bytes

    def route_directly(self, allocation: str) -> None:
        """Send all messages to procs of *allocation* directly again: it has ended."""
        self._routes.pop(allocation, None)
        if not self._routes:
            self.max_direct = sys.maxsize

    def route_to(self, allocation: str) -> CastRoute | None:
        """The way into an allocation; None if messages to its procs are direct."""
        return self._routes.get(allocation)

    # ---- direct messages ----

    def send(self, proc: ProcRef, line: MessageLink, frame: Frame, until_s: float | None = None) -> bool:
        """Send *frame* to one proc, behind all earlier casts to that proc; otherwise as `MessageLink.send`."""
        if self._open:
            self.mark_after(proc.incarnation, line)
        sent = line.send(frame, until_s)
        self.sent(proc.incarnation)
        return sent

    def mark_after(self, incarnation: int, line: MessageLink) -> None:
        """Let direct messages that follow on *line* wait for the casts in flight to that proc; before each message."""
        after = self._targets.last_to(incarnation)
        if after > self.in_flight.marked.get(incarnation, 0):
            line.send(Frame(Kind.MARK, Mark.AFTER, after))
            self.in_flight.marked[incarnation] = after

    # ---- casts ----

    def takes(self, region: Region, procs: Mapping[int, ProcRef], buffers: Sequence[Buffer]) -> bool:
        """Whether a message goes through the agents: to many procs, or a large one that several of a host share.

        A large one to few procs is sent directly where one of them is reached by RDMA, which agents do not use.
        """
        if len(region) > self.max_direct:
            return True
        if not buffers or not self._routes or len(region) < 2 or not is_shareable(buffers, self._shared_bytes):
            return False
        channels = self._connections.node.channels
        some = [procs[rank] for rank in region.base_ranks()]
        known = [channels.get(proc.incarnation) for proc in some]
        if any(channel is not None and channel.fabric == FabricKind.UCX_RDMA.value for channel in known):
            return False
        return len(some) >= 2 * len({proc.host_rank for proc in some})

    def cast(
        self, region: Region, procs: Mapping[int, ProcRef], message: CastMessage, delivery: Delivery
    ) -> OpenCast | None:
        """Send one message to the procs of *region*; None if nothing was sent and the caller must send directly.

        If a mailbox is full until the caller's deadline, nothing is sent and the cast is `held`.

        Raises:
            FrameError: the message is over a limit; nothing was sent.
        """
        kind, actor, body, buffers = message.kind, message.actor, message.body, message.buffers
        if not self.takes(region, procs, buffers):
            return None
        route = self.route_to(procs[region.base_rank(0)].allocation)
        if route is None:
            return None
        target = self._targets.of(route.run, region, procs)
        if target is None or not route.connect():
            return None
        if buffers and is_shareable(buffers, self._shared_bytes) and route.shares():
            buffers = copy_to_share(buffers)
        end_s = delivery.end_s
        limit = delivery.answer is not None and end_s is not None
        if limit and end_s is not None:
            body = limited(max(end_s - self._connections.engine.clock(), 0.0), body)
        cost = cost_of(Frame(kind, actor, 0, body, buffers)) if kind is Kind.CALL else 0
        cast = OpenCast(
            route,
            target,
            0,
            actor,
            cost,
            delivery.where,
            delivery.answer,
            delivery.reduce if target.in_blocks else None,
            limit,
            delivery.record,
        )
        cast.held = cost > 0 and not self._take_credit(route, actor, cost, end_s)
        if not cast.held:
            self._send(cast, kind, body, buffers)
        return cast

    def spawn(
        self, region: Region, procs: Mapping[int, ProcRef], actor: int, body: bytes, buffers: Sequence[Buffer]
    ) -> bool:
        """Spawn an actor in many procs; False if the caller must send SPAWN to each directly.

        Only the program casts spawns: it has channels to all procs, and so detects their deaths. Any other process
        would have to open those channels, and may then as well use them.
        """
        if self._connections.node.identity.role is not Role.CONTROLLER:
            return False
        by_rank = CurrentProcs({proc.rank: proc for proc in procs.values()})
        message = CastMessage(Kind.SPAWN, actor, body, buffers)
        return self.cast(region, by_rank, message, Delivery(lambda _place: f"actor {actor:x}", None)) is not None

    def stop(self, region: Region, procs: Mapping[int, ProcRef], actor: int, answer: Answered, reason: str) -> bool:
        """Stop an actor in many procs; False if the caller must send STOP to each directly."""

        def where(place: int) -> str:
            return f"the end of actor {actor:x} on {procs[region.base_rank(place)].host}"

        return (
            self.cast(region, procs, CastMessage(Kind.STOP, actor, reason.encode()), Delivery(where, answer))
            is not None
        )

    def cancel(self, cast: OpenCast) -> None:
        """Cancel a cast at the callees that have not answered yet."""
        if cast.left and cast.number:
            cancel = OpenCast(cast.route, cast.target, 0, cast.actor, 0, cast.where, None)
            with contextlib.suppress(TransportError):
                self._send(cancel, Kind.CANCEL, pack_number(cast.number), ())

    def _send(self, cast: OpenCast, kind: Kind, body: bytes, buffers: Sequence[Buffer]) -> None:
        engine = self._connections.engine
        with engine.undisturbed():
            locked = self._lock.acquire(blocking=not engine.driving)
            try:
                # A finalizer may cast in the middle of another cast, on its thread.
                if not locked or self._sending:
                    copies = [copy_of(buffer) for buffer in buffers]
                    engine.call_later(_AGAIN_S, partial(self._send, cast, kind, body, copies))
                    return
                self._sending = True
                try:
                    self._send_locked(cast, kind, body, buffers)
                finally:
                    self._sending = False
            finally:
                if locked:
                    self._lock.release()

    def _send_locked(self, cast: OpenCast, kind: Kind, body: bytes, buffers: Sequence[Buffer]) -> None:
        line, target = cast.route.channel, cast.target
        assert line is not None
        cast.channel = line  # the route may have another one when this one's end is reported
        number = cast.number = self.num_sent + 1
        last = target.last
        frame = pack_cast(
            Cast(
                kind=kind,
                answered=cast.answer is not None,
                limited=cast.limited,
                origin=self._connections.own.incarnation,
                number=number,
                root=0,  # filled in by the agent at which the cast enters
                low=0,
                high=0,
                target=target.packed,
                hosts=target.hosts,
                waits=self._mark(target, number),
                actor=cast.actor,
                body=body,
                buffers=buffers,
                functions=b"" if cast.reduce is None else cast.reduce.functions,
            )
        )
        self.num_sent = number
        if cast.answer is not None:
            cast.left.update(range(len(target.region)))
        target.last = number
        self.in_flight.add(cast)
        cast.record_sent(self._recorder, size_of(body, buffers))
        try:
            line.send(frame)
        except FrameError:
            target.last = last  # or direct messages would wait for this cast
            cast.left.clear()
            self.in_flight.close(cast)
            raise
        except TransportError as error:
            self.in_flight.lose(cast, error)

    def _mark(self, target: CastTarget, number: int) -> tuple[int, ...]:
        """Send a BEFORE mark to each proc with direct messages since its last cast; return the ranks of those procs."""
        waits = []
        for incarnation in self._direct & target.places.keys():
            proc = target.proc(target.places[incarnation])
            self._direct.discard(incarnation)  # first: a message sent behind the mark adds it again
            line = self._connections.open_line(incarnation)
            if line is not None:  # else what was sent to it is lost with its channel, and no cast waits for it
                with contextlib.suppress(TransportError):  # it is gone
                    line.send(Frame(Kind.MARK, Mark.BEFORE, number))
                    waits.append(proc.rank)
        return tuple(waits)

    def _take_credit(self, route: CastRoute, actor: int, cost: int, end_s: float | None) -> bool:
        if route.credit.try_take(actor, cost):
            return True
        self.num_waiting += 1
        try:
            return take_credit(self._connections.engine, route.credit, actor, cost, end_s, broken=lambda: route.broken)
        finally:
            self.num_waiting -= 1

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Handle the end of a channel."""
        self.in_flight.lose_all(channel, error)
        incarnation = channel.peer.incarnation
        if incarnation not in self._connections.channels:
            self.in_flight.marked.pop(incarnation, None)
            self._direct.discard(incarnation)
        self.in_flight.on_lost(incarnation, error)
