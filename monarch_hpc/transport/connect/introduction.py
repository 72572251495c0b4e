"""Moves a channel to a faster fabric, if both sides have one; see `transport.connect.negotiation`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.core.errors import FrameError, TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Ask, Fabric, FabricKind, Lane, Peer
from monarch_hpc.transport.connect.negotiation import Offer, choose, decode_offer, encode_offer
from monarch_hpc.wire.frames import Buffer, Frame, Kind

__all__ = ["FIRST_S", "Introduction"]

FIRST_S = 0.05
"""Delay before the negotiation, for the channel's first frames. UCX takes 30 ms of CPU in each process that starts it:
where eight start at once on two cores, the answers that their program waits for come first."""

_ROLES = (Role.PROC, Role.CONTROLLER)
"""Roles with bulk traffic. Agents and commands have none, and are spared a fabric's threads and memory."""


class Introduction:
    """One side of a channel's negotiation; for the driver.

    It ends with one call of *switch* or *stay*, unless it is cancelled.

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
        self._over = False

    @property
    def asks(self) -> bool:
        """Whether this side speaks first, and has a reason to."""
        return self._fabric is not None and self._dialed and self._peer.role in _ROLES

    def begin(self) -> None:
        """Send the first message, if this side speaks first and may use a fabric."""
        if self._over:
            return
        if self._fabric is None:
            self._end("ucx is not in fabric.order, or this is not a proc")
        elif self.asks:
            self._send(Offer(self._own_ask(self._fabric)))
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
                self._send(Offer(Ask(problem="it does not use ucx")))
            return
        if self._over:
            return
        kind, why = choose(self._own_ask(fabric), offer.ask)
        if kind is None:
            if not self._dialed:
                self._send(Offer(replace(self._own_ask(fabric), problem=why)))
            self._end(why)
        elif self._lane is not None:
            self._join(self._lane, offer, kind, why)
        elif self._dialed and not offer.address:
            raise FrameError("an offer without an address")
        else:
            fabric.start(lambda problem: self._started(problem, offer, kind, why))

    def _own_ask(self, fabric: Fabric) -> Ask:
        # Where our socket needs an indirect route, a fabric's tcp would need one too.
        direct = not (self._peer.relayed or self._peer.via)
        return fabric.ask if direct else replace(fabric.ask, tcp=False)

    def _started(self, problem: str, offer: Offer, kind: FabricKind, why: str) -> None:
        if self._over:
            return
        if problem:
            self._send(Offer(Ask(problem=problem)))
            self._end(problem)
            return
        assert self._fabric is not None
        lane = self._lane = self._open_lane()
        self._send(Offer(self._own_ask(self._fabric), self._fabric.address, lane.token))
        if self._dialed:
            self._join(lane, offer, kind, why)

    def _join(self, lane: Lane, offer: Offer, kind: FabricKind, why: str) -> None:
        self._over = True
        try:
            lane.connect(kind, offer.address, offer.token)
        except TransportError as error:
            self._stay(str(error))
        else:
            self._switch(lane, kind, why)

    def _send(self, offer: Offer) -> None:
        self._send_on_socket(Frame(Kind.OFFER, body=encode_offer(offer)))

    def _end(self, why: str) -> None:
        self._over = True
        self._stay(why)

    def cancel(self) -> None:
        """Abort: the channel has ended."""
        self._over = True
