"""Two processes, and threads of one, that dial at the same time: each one's frames still arrive in order."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.frames import Frame, Kind
from tests.system.support.parties import PATIENCE_S, UCX, Party, parties

__all__ = ["parties"]

_NUM_ROUNDS = 12
_NUM_FRAMES = 300
_NUM_THREADS = 3


class Caller(threading.Thread):
    """Sends as callers do: on the channel that the node knows, or else opens."""

    def __init__(self, party: Party, other: Party, addresses: list[str], number: int) -> None:
        super().__init__()
        self.used: set[FrameChannel] = set()
        self._party = party
        self._other = other.identity.incarnation
        self._addresses = addresses
        self._number = number
        self.start()

    def run(self) -> None:
        node = self._party.node
        for number in range(_NUM_FRAMES):
            channel = node.channels.get(self._other) or node.connect(self._addresses, self._other)
            self.used.add(channel)
            channel.send(Frame(Kind.RESULT, self._number, number))


@pytest.fixture(params=["tcp", "ucx-shm"])
def two(parties: Callable[..., Party], request: pytest.FixtureRequest) -> Callable[[], list[Party]]:
    return lambda: [parties(ucx=UCX.get(request.param, "")) for _ in range(2)]


@pytest.mark.slow
def test_who_dial_each_other_at_once_keep_their_order(two: Callable[[], list[Party]]) -> None:
    for _ in range(_NUM_ROUNDS):
        both = two()
        addresses = [party.node.listen(["127.0.0.1"]) for party in both]
        callers = [
            Caller(both[side], both[1 - side], addresses[1 - side], number)
            for number in range(_NUM_THREADS)
            for side in (0, 1)
        ]
        for caller in callers:
            caller.join(PATIENCE_S)
        for side, party in enumerate(both):
            party.until(lambda party=party: len(party.frames) == _NUM_THREADS * _NUM_FRAMES)  # type: ignore[misc]
            for number in range(_NUM_THREADS):
                seen = [frame.reply for frame in party.frames if frame.dest == number]
                assert seen == list(range(_NUM_FRAMES))
            assert len({channel for caller in callers[1 - side :: 2] for channel in caller.used}) == 1
        for party in both:
            party.node.close("the round ended")
