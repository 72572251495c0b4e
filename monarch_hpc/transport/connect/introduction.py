"""Moves a channel to a faster fabric, if both sides have one; see `transport.connect.negotiation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Capabilities, Fabric, FabricKind, Lane, Peer
from monarch_hpc.transport.connect.negotiation import Offer, choose, decode_offer, encode_offer
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["FIRST_S", "Introduction"]

FIRST_S = 0.05
"""Delay before the negotiation, for the channel's first frames, unless memory is used sooner. UCX takes 30 ms of CPU in
each process that starts it: where eight start at once on two cores, the answers that their program waits for come
first."""

_ROLES = (Role.PROC, Role.CONTROLLER)
"""Roles with bulk traffic. Agents and commands have none, and are spared a fabric's threads and memory."""


class Introduction:
    """One side of a channel's negotiation; for the driver.

    It ends with one call of *switch* or *stay*, unless it is cancelled, or the fabric never reaches the peer.

    Args:
        peer: the process at the other end.
        open_lane: opens a lane of the channel; called once the fabric has started.
        send: sends on the socket.
        switch: sends all further frames on the lane, which is connected; also called with the reason.
        stay: stays on the socket; called with the reason.
        dialed: whether this side opened the channel, and so speaks first.
    """

    def __init__(
        self,
        peer: Peer,
        fabric: Fabric | None,
        open_lane: Callable[[], Lane],
        send: Callable[[Frame], None],
        switch: Callable[[Lane, FabricKind, str], None],
        stay: Callable[[str], None],
        *,
        dialed: bool,
    ) -> None:
        self._peer = peer
        self._fabric = fabric
        self._open_lane = open_lane
        self._send_on_socket = send
        self._switch = switch
        self._stay = stay
        self._dialed = dialed
        self._lane: Lane | None = None
        self._timer: Timer | None = None
        self._begun = False
        self._over = False

    @property
    def asks(self) -> bool:
        """Whether this side speaks first, and has a reason to."""
        return self._fabric is not None and self._dialed and self._peer.role in _ROLES

    def start(self, later: Callable[[float, Callable[[], None]], Timer]) -> None:
        """Begin after `FIRST_S` if this side speaks first, else at once; *later* is the engine's `call_later`."""
        if self.asks:
            self._timer = later(FIRST_S, self.begin)
        else:
            self.begin()

    def begin(self) -> None:
        """Send the first message, if this side speaks first and may use a fabric; once, later calls do nothing."""
        if self._over or self._begun:
            return
        self._begun = True
        if self._fabric is None:
            self._end("ucx is not in fabric.order, or this is not a proc")
        elif self.asks:
            self._send(Offer(self._own_capabilities(self._fabric)))
        elif self._dialed:
            self._end(f"{self._peer.role.name.lower()}s use sockets")

    def on_offer(self, body: Buffer) -> None:
        """Handle a message of the other side.

        Raises:
            FrameError: the message is invalid.
        """
        offer = decode_offer(bytes(body))
        fabric = self._fabric
        if fabric is None:
            if not self._dialed:  # the other side asked
                self._send(Offer(Capabilities(problem="it does not use ucx")))
            return
        if self._over:
            return
        kind, why = choose(self._own_capabilities(fabric), offer.capabilities)
        if kind is None:
            if not self._dialed:
                self._send(Offer(replace(self._own_capabilities(fabric), problem=why)))
            self._end(why)
        elif self._lane is not None:
            self._join(self._lane, offer, kind, why)
        elif self._dialed and not offer.address:
            raise FrameError("an offer without an address")
        else:
            fabric.start(lambda problem: self._started(problem, offer))

    def _own_capabilities(self, fabric: Fabric) -> Capabilities:
        # Where our socket needs an indirect route, a fabric's tcp would need one too.
        direct = not (self._peer.relayed or self._peer.via)
        return fabric.capabilities if direct else replace(fabric.capabilities, tcp=False)

    def _started(self, problem: str, offer: Offer) -> None:
        if self._over:
            return
        assert self._fabric is not None
        own = self._own_capabilities(self._fabric)  # the start may have found that some of them do not work
        kind, why = (None, problem) if problem else choose(own, offer.capabilities)
        if kind is None:
            self._send(Offer(replace(own, problem=why)))
            self._end(why)
            return
        lane = self._lane = self._open_lane()
        self._send(Offer(own, self._fabric.address, lane.token))
        if self._dialed:
            self._join(lane, offer, kind, why)

    def _join(self, lane: Lane, offer: Offer, kind: FabricKind, why: str) -> None:
        self._over = True
        try:
            lane.connect(kind, offer.address, offer.token, lambda: self._switch(lane, kind, why))
        except TransportError as error:
            self._stay(str(error))

    def _send(self, offer: Offer) -> None:
        self._send_on_socket(Frame(Kind.OFFER, body=encode_offer(offer)))

    def _end(self, why: str) -> None:
        self._over = True
        self._stay(why)

    def cancel(self) -> None:
        """Abort: the channel has ended."""
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
