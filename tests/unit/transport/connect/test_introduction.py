"""Two sides agree on a fabric, or on the socket, whatever either lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from monarch_hpc.core.errors import FrameError, PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Capabilities, Fabric, FabricKind, Lane, Peer
from monarch_hpc.transport.connect.introduction import FIRST_S, Introduction
from monarch_hpc.transport.connect.negotiation import Offer, decode_offer, encode_offer
from monarch_hpc.transport.engine.sources import Timer
from monarch_hpc.wire.frames import Frame, Kind

TCP = "tcp://10.0.0.1:1"


class Facts:
    """A fabric as far as the negotiation sees it; the test says how its start ends."""

    def __init__(self, capabilities: Capabilities, address: bytes) -> None:
        self.capabilities = capabilities
        self.address = address
        self.starts: list[Callable[[str], None]] = []

    def start(self, started: Callable[[str], None]) -> None:
        self.starts.append(started)


class End:
    """A lane as far as the negotiation sees it."""

    def __init__(self, token: bytes, *, reached: bool) -> None:
        self.token = token
        self.connected: list[tuple[FabricKind, bytes, bytes]] = []
        self._reached = reached

    def connect(self, kind: FabricKind, address: bytes, token: bytes, connected: Callable[[], None]) -> None:
        if not self._reached:
            raise PeerLost("there", "no route")
        self.connected.append((kind, address, token))
        connected()


class Side:
    """One side, and all that it decided."""

    def __init__(
        self,
        name: str,
        capabilities: Capabilities | None,
        *,
        dialed: bool,
        role: Role = Role.PROC,
        address: str = TCP,
        reached: bool = True,
    ) -> None:
        self.fabric = None if capabilities is None else Facts(capabilities, f"address of {name}".encode())
        self.lane = End(f"token of {name}".encode(), reached=reached)
        self.sent: list[Frame] = []
        self.outcome: list[tuple[object, ...]] = []
        self.introduction = Introduction(
            Peer(role, "there", 1, 0, "3.11.0", "0.1.0", address),
            cast(Fabric | None, self.fabric),
            lambda: cast(Lane, self.lane),
            self.sent.append,
            lambda lane, kind, why: self.outcome.append((lane, kind, why)),
            lambda why: self.outcome.append((why,)),
            dialed=dialed,
        )

    def started(self, problem: str = "") -> None:
        """End the start of the fabric."""
        assert self.fabric is not None
        (begun,) = self.fabric.starts
        begun(problem)


def settle(*sides: Side, problems: tuple[str, str] = ("", "")) -> None:
    """Deliver all messages, and let each fabric start."""
    for side in sides:
        side.introduction.begin()
    moved = True
    while moved:
        moved = False
        for side, other, problem in zip(sides, reversed(sides), problems, strict=True):
            while side.sent:
                frame = side.sent.pop(0)
                assert frame.kind is Kind.OFFER
                other.introduction.on_offer(frame.body)
                moved = True
            if side.fabric is not None and side.fabric.starts:
                side.fabric.starts.pop()(problem)
                moved = True


def pair(first: Capabilities | None, second: Capabilities | None) -> tuple[Side, Side]:
    return Side("a", first, dialed=True), Side("b", second, dialed=False)


@pytest.mark.parametrize(
    ("capabilities", "kind", "why"),
    [
        (Capabilities(place="here", rdma=True, tcp=True), FabricKind.UCX_SHM, "same host"),
        (Capabilities(rdma=True, tcp=True), FabricKind.UCX_RDMA, "both have RDMA"),
        (Capabilities(tcp=True), FabricKind.UCX_TCP, "fabric.trusted"),
    ],
)
def test_both_switch_to_the_best_that_both_have(capabilities: Capabilities, kind: FabricKind, why: str) -> None:
    a, b = pair(capabilities, capabilities)
    settle(a, b)
    assert a.outcome == [(a.lane, kind, why)] and b.outcome == [(b.lane, kind, why)]
    assert a.lane.connected == [(kind, b"address of b", b"token of b")]
    assert b.lane.connected == [(kind, b"address of a", b"token of a")]


def test_without_a_common_fabric_none_is_started() -> None:
    a, b = pair(Capabilities(place="here", rdma=True), Capabilities(place="elsewhere"))
    settle(a, b)
    why = "another host, no RDMA on both sides, and fabric.trusted is false"
    assert b.outcome == [(why,)] and a.outcome == [(f"there: {why}",)]


@pytest.mark.parametrize("which", [0, 1])
def test_a_fabric_that_does_not_start_is_the_end_of_it_on_both_sides(which: int) -> None:
    a, b = pair(Capabilities(tcp=True), Capabilities(tcp=True))
    settle(a, b, problems=("no library", "") if which == 0 else ("", "no library"))
    here, there = (a, b) if which == 0 else (b, a)
    assert here.outcome == [("no library",)] and there.outcome == [("there: no library",)]


def test_a_side_without_fabrics_says_so() -> None:
    a, b = pair(Capabilities(tcp=True), None)
    settle(a, b)
    assert a.outcome == [("there: it does not use ucx",)]
    assert b.outcome == [("ucx is not in fabric.order, or this is not a proc",)]


def test_a_lane_that_cannot_be_connected_leaves_its_side_on_the_socket() -> None:
    a, b = (
        Side("a", Capabilities(tcp=True), dialed=True, reached=False),
        Side("b", Capabilities(tcp=True), dialed=False),
    )
    settle(a, b)
    ((why,),) = a.outcome
    assert "no route" in str(why)
    assert b.outcome == [(b.lane, FabricKind.UCX_TCP, "fabric.trusted")]


@pytest.mark.parametrize("role", [Role.AGENT, Role.TOOL])
def test_channels_without_bulk_traffic_use_their_socket(role: Role) -> None:
    side = Side("a", Capabilities(tcp=True), dialed=True, role=role)
    assert not side.introduction.asks
    side.introduction.begin()
    assert side.sent == [] and side.outcome == [(f"{role.name.lower()}s use sockets",)]


def test_the_side_that_was_dialled_waits_to_be_asked() -> None:
    side = Side("b", Capabilities(tcp=True), dialed=False)
    side.introduction.begin()
    assert not side.introduction.asks and side.sent == [] and side.outcome == []


@pytest.mark.parametrize("address", [f"relay+{TCP}", f"via+{TCP}"])
def test_where_the_socket_needs_a_detour_tcp_would_too(address: str) -> None:
    side = Side("a", Capabilities(rdma=True, tcp=True), dialed=True, address=address)
    side.introduction.begin()
    assert decode_offer(bytes(side.sent[0].body)) == Offer(Capabilities(rdma=True, tcp=False))


def test_an_answer_without_an_address_is_invalid() -> None:
    side = Side("a", Capabilities(tcp=True), dialed=True)
    side.introduction.begin()
    with pytest.raises(FrameError, match="without an address"):
        side.introduction.on_offer(encode_offer(Offer(Capabilities(tcp=True))))


def test_after_the_end_of_the_channel_nothing_is_decided() -> None:
    side = Side("b", Capabilities(tcp=True), dialed=False)
    side.introduction.on_offer(encode_offer(Offer(Capabilities(tcp=True))))
    side.introduction.cancel()
    side.started()
    side.introduction.on_offer(encode_offer(Offer(Capabilities(tcp=True))))
    side.introduction.begin()
    assert side.sent == [] and side.outcome == []


def test_it_begins_later_or_when_it_is_wanted_but_once() -> None:
    side = Side("a", Capabilities(tcp=True), dialed=True)
    timers: list[Timer] = []

    def later(delay_s: float, callback: Callable[[], None]) -> Timer:
        timers.append(Timer(delay_s, callback))
        return timers[-1]

    side.introduction.start(later)
    (timer,) = timers
    assert not side.sent and timer.at_s == FIRST_S
    side.introduction.begin()
    timer.fire()
    assert len(side.sent) == 1
    side.introduction.cancel()
    other = Side("b", Capabilities(tcp=True), dialed=False)
    other.introduction.start(later)
    assert len(timers) == 1 and not other.sent
