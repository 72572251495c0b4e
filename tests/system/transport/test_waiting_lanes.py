"""A lane is used once the fabric has reached the peer; until then the socket carries the frames."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.core.ids import Role
from monarch_hpc.transport.api import Fabric
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.memory_fabric import MemoryFabric, MemoryLane
from tests.system.support.parties import Party, parties

__all__ = ["parties"]

Parties = Callable[..., Party]


class Waiting:
    """Two parties, of which one or both wait for their lane to be connected."""

    def __init__(self, make: Parties, *, both: bool) -> None:
        self.fabrics: list[MemoryFabric] = []

        def kept(waits: bool, engine: Engine) -> Fabric:
            self.fabrics.append(MemoryFabric(engine, waits=waits))
            return self.fabrics[-1]

        self.server = make(fabric=partial(kept, both))
        self.client = make(role=Role.CONTROLLER, fabric=partial(kept, True))
        self.channel = self.client.node.connect(self.server.node.listen(["127.0.0.1"]))
        self.client.until(lambda: bool(self.fabrics[1].connecting))
        self.server.until(lambda: bool(self.fabrics[0].connecting if both else self.server.opened[0].why))

    @property
    def lanes(self) -> list[MemoryLane]:
        """The lanes of the server and the client."""
        return [fabric.opened[0] for fabric in self.fabrics]

    def connect(self, which: int) -> None:
        """Let the lane of the server or the client be connected."""
        (connected,) = self.fabrics[which].connecting or []
        self.fabrics[which].engine.call_soon(connected)

    def exchange(self, number: int) -> None:
        """Send a frame with this number each way, and check that they arrive after those before."""
        for channel, receiver in ((self.channel, self.server), (self.server.opened[0], self.client)):
            channel.send(Frame(Kind.RESULT, number))
            receiver.until(lambda: bool(receiver.frames) and receiver.frames[-1].dest == number)  # noqa: B023 asked at once


def test_frames_stay_on_the_socket_until_the_fabric_reaches_the_peer(parties: Parties) -> None:
    waiting = Waiting(parties, both=False)
    waiting.exchange(1)
    assert [lane.num_frames for lane in waiting.lanes] == [0, 1]
    assert (waiting.channel.fabric, waiting.channel.why) == ("tcp", "")
    waiting.connect(1)
    waiting.client.until(lambda: waiting.channel.fabric == "ucx/rdma")
    waiting.exchange(2)
    assert [lane.num_frames for lane in waiting.lanes] == [1, 2]


def test_a_lane_that_fails_before_its_use_leaves_the_socket(parties: Parties) -> None:
    waiting = Waiting(parties, both=True)
    lane = waiting.lanes[1]
    waiting.client.engine.call_soon(partial(lane.listener.on_lane_error, PeerLost("there", "no route")))
    waiting.client.until(lambda: lane.ended is not None)
    waiting.exchange(1)
    assert waiting.channel.fabric == "tcp" and "no route" in waiting.channel.why
    assert not (waiting.client.lost or waiting.server.lost)
    waiting.connect(0)  # the other side does use it
    waiting.client.until(lambda: bool(waiting.client.lost))
    assert "it uses a lane that is not there: " in str(waiting.channel.error) and "no route" in str(
        waiting.channel.error
    )
    waiting.server.until(lambda: bool(waiting.server.lost))


def test_a_lane_that_fails_once_the_peer_uses_it_ends_the_channel(parties: Parties) -> None:
    waiting = Waiting(parties, both=False)
    waiting.exchange(1)
    waiting.client.engine.call_soon(partial(waiting.lanes[1].listener.on_lane_error, PeerLost("there", "no route")))
    waiting.client.until(lambda: bool(waiting.client.lost))
    waiting.server.until(lambda: bool(waiting.server.lost))
