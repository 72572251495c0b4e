"""A link lets procs of two allocations prove themselves to each other, and nobody else."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from monarch_hpc.config.load import load
from monarch_hpc.core.errors import AuthenticationError, PeerLost
from monarch_hpc.core.ids import Identity, Role, new_allocation_id, new_incarnation
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.secure.link import LinkKey, new_secret
from monarch_hpc.wire.frames import Frame, Kind

_A, _B = new_allocation_id(), new_allocation_id()


class Side:
    """A process of one of the allocations, which keeps what it hears."""

    def __init__(self, engine: Engine, allocation: str, key: bytes, role: Role = Role.PROC) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.lost: list[str] = []
        identity = Identity(allocation, role, "here", new_incarnation())
        self.node = Node(engine, identity, key, self, load().config.transport)
        self.addresses = self.node.listen(["127.0.0.1"])

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: its frames follow."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Keep the frame and the allocation of its sender."""
        self.heard.append((channel.peer.allocation, bytes(frame.body)))

    def on_lost(self, channel: FrameChannel, error: Exception) -> None:
        """Keep the end of the channel."""
        self.lost.append(str(error))

    def dial(self, other: Side, allocation: str = "") -> FrameChannel:
        """Open a channel to a process of *allocation*."""
        return self.node.connect(other.addresses, other.node.identity.incarnation, 60.0, allocation)


@pytest.fixture
def sides(engine: Engine) -> Iterator[tuple[Side, Side]]:
    """A proc of allocation A and one of B, which share nothing."""
    pair = Side(engine, _A, os.urandom(32)), Side(engine, _B, os.urandom(32))
    yield pair
    for side in pair:
        side.node.close("the test is over")


def link(a: Side, b: Side) -> tuple[str, bytes]:
    name, key = new_secret()
    a.node.link(LinkKey(_B, name, key))
    b.node.link(LinkKey(_A, name, key))
    return name, key


def test_a_link_connects_both_ways_and_says_which_allocation_a_peer_is_of(sides: tuple[Side, Side]) -> None:
    a, b = sides
    with pytest.raises(PeerLost, match="has no key for it"):
        a.dial(b, _B)
    link(a, b)
    channel = a.dial(b, _B)
    assert channel.peer.allocation == _B
    channel.send(Frame(Kind.CALL, 1, 0, b"from a"))
    wait_until("the frame", lambda: b.heard == [(_A, b"from a")])
    back = b.dial(a, _A)
    back.send(Frame(Kind.CALL, 1, 0, b"from b"))
    wait_until("the answer", lambda: a.heard == [(_B, b"from b")])


def test_the_end_of_a_link_closes_its_channels_and_nothing_else(sides: tuple[Side, Side], engine: Engine) -> None:
    a, b = sides
    link(a, b)
    channel = a.dial(b, _B)
    a.node.leave(_B, "the other allocation has ended")
    assert channel.error is not None
    wait_until("the end at the other side", lambda: bool(b.lost))
    with pytest.raises(PeerLost, match="has no key for it"):
        a.dial(b, _B)
    with pytest.raises(AuthenticationError):  # the other side has not heard of it: this one refuses
        b.dial(a, _A)


@pytest.mark.parametrize("role", [Role.CONTROLLER, Role.AGENT, Role.TOOL])
def test_a_link_is_for_procs_alone(sides: tuple[Side, Side], engine: Engine, role: Role) -> None:
    """A proc of one allocation must not pass for the program, or an agent, of the other."""
    a, b = sides
    name, key = link(a, b)
    pretender = Side(engine, _A, os.urandom(32), role)
    pretender.node.link(LinkKey(_B, name, key))
    with pytest.raises(AuthenticationError):
        pretender.dial(b, _B)
    pretender.node.close("the test is over")


def test_neither_key_stands_for_the_other(sides: tuple[Side, Side], engine: Engine) -> None:
    a, b = sides
    name, key = link(a, b)
    # The link's key under the allocation's id, and another key under the link's name.
    for given in (LinkKey(_B, _B, key), LinkKey(_B, name, os.urandom(32))):
        stranger = Side(engine, _A, os.urandom(32))
        stranger.node.link(given)
        with pytest.raises(AuthenticationError):
            stranger.dial(b, _B)
        stranger.node.close("the test is over")
