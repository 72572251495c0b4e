"""Agents and a run's owner elect a head over slow channels: in the end all of them follow it, and nobody is fenced."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from monarch_hpc.agent.head.link import ChannelLink, Link, LocalLink
from monarch_hpc.agent.succession.elections import Elections, ElectionsEnd
from monarch_hpc.allocation.heads import HeadPlace
from monarch_hpc.attach.owner_voice import OwnerVoice
from monarch_hpc.config.schema import LivenessConfig
from monarch_hpc.core.ids import Role
from monarch_hpc.supervision.announcement import announcement_of
from monarch_hpc.supervision.electorate import Electorate, Voters
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame

LIVENESS = LivenessConfig(heartbeat_s=1.0, suspect_s=5.0, dead_s=15.0, fence_s=30.0)
OWNER = 100
Delay = Callable[[], float]


@dataclass
class World:
    """Agents of the ranks 1 and above, whose head of rank 0 is lost, and the owner of a run; with a time of its own.

    Args:
        delay: of a message, and of a new channel.
    """

    num_hosts: int
    delay: Delay
    now_s: float = 0.0
    agents: dict[int, Agent] = field(default_factory=dict)
    fenced: list[str] = field(default_factory=list)
    heads: dict[int, int] = field(default_factory=dict)  # rank by term, as the directory says

    def __post_init__(self) -> None:
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        electorate = Electorate(1, 1, 1, Voters(tuple(range(1, self.num_hosts + 1)), OWNER), heeds_slurm=True)
        head: Any = Channel(self, 1, Role.AGENT, lambda *_: None)
        self.owner = Owner(self)
        for rank in range(1, self.num_hosts):
            self.agents[rank] = Agent(self, rank)
        for one in self.agents.values():
            one.elections.on_roster([entry(rank) for rank in range(self.num_hosts)])
            one.elections.follow(HeadPlace(1, 0, ["tcp://host0:1"]), 1)
            one.elections.on_message(head, announcement_of(electorate))
        self.owner.voice.note_hosts([entry(rank) for rank in range(self.num_hosts)])
        assert self.owner.voice.take(head, announcement_of(electorate), head)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_s + delay_s, next(self._numbers), call))

    def run(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._due)
            call()

    def dial(self, dialler: Agent | Owner, addresses: Sequence[str], done: Callable[[Any], None]) -> None:
        rank = int(addresses[0].removeprefix("tcp://host").partition(":")[0])
        if rank == 0:
            return  # no power: nothing answers
        callee = self.agents[rank]
        role = Role.CONTROLLER if isinstance(dialler, Owner) else Role.AGENT
        there: Any = Channel(self, dialler.voice_number, role, callee.receive)
        here: Any = Channel(self, callee.voice_number, Role.AGENT, dialler.receive)
        here.other, there.other = there, here

        def established() -> None:
            callee.elections.on_channel(there)
            done(here)

        self.call_later(self.delay(), established)


class Channel:
    """One end: *receive* handles what arrives at this end."""

    def __init__(self, world: World, voice: int, role: Role, receive: Callable[[Channel, Frame], None]) -> None:
        self._world = world
        self.peer: Any = SimpleNamespace(incarnation=voice, role=role)
        self.error, self.queued_bytes, self.mark = None, 0, 0
        self.other: Channel | None = None
        self._receive = receive
        self._arrived_s = 0.0

    def send(self, frame: Frame) -> bool:
        other = self.other
        if other is not None:
            other._arrived_s = max(other._arrived_s, self._world.now_s + self._world.delay())  # in order
            self._world.call_later(other._arrived_s - self._world.now_s, partial(other._receive, other, frame))
        return True

    def close(self, _reason: str) -> None:
        """Both ends stay usable: what was sent arrives late."""


class Agent:
    """One agent, and as the head also its followers."""

    def __init__(self, world: World, rank: int) -> None:
        self.world, self.rank, self.voice_number = world, rank, rank + 1
        self.leader: HeadPlace | None = None
        self._links: dict[int, Link] = {}
        self._owner: Link | None = None
        node: Any = SimpleNamespace(
            identity=SimpleNamespace(incarnation=self.voice_number),
            dial=lambda addresses, _member, done: world.dial(self, addresses, done),
        )
        engine: Any = SimpleNamespace(clock=lambda: world.now_s, call_later=world.call_later)
        slurm: Any = SimpleNamespace(counts=True, note_hosts=lambda _hosts: None, ask=lambda _host, _gone: None)
        end = ElectionsEnd(self._take_office, self._follow, lambda why: world.fenced.append(f"{rank}: {why}"))
        self.elections = Elections(engine, node, entry(rank), LIVENESS, slurm, end)

    @property
    def complete(self) -> bool:
        """Whether all others that live have joined."""
        return self._links.keys() == self.world.agents.keys()

    def agents(self) -> list[Link]:
        """The links to the agents that follow this one, its own among them."""
        return [self._links[rank] for rank in sorted(self._links)]

    def voters(self) -> list[Link]:
        """All of them."""
        return self.agents()

    def owner(self) -> Link | None:
        """The owner of the run, once it has come."""
        return self._owner

    def receive(self, channel: Channel, frame: Frame) -> None:
        """Handle a message, as `Service` does."""
        channel_: Any = channel
        assert self.elections.on_frame(channel_, frame) or self.elections.on_message(channel_, decode(frame.body))

    def join(self, rank: int | None, channel: Channel) -> None:
        """Be joined by an agent, or by the owner."""
        link = ChannelLink(channel)  # type: ignore[arg-type]
        if rank is None:
            self._owner = link
        else:
            self._links[rank] = link
        self.elections.greet(link)

    def _take_office(self, term: int) -> None:
        self.leader = HeadPlace(term, self.rank, [f"tcp://host{self.rank}:1"])
        self.world.heads[term] = self.rank
        self._links[self.rank] = LocalLink(lambda _message: None, lambda _reason: None)
        self.world.call_later(0.0, lambda: self.elections.lead(self))

    def _follow(self, place: HeadPlace) -> None:
        def joined(channel: Channel) -> None:
            assert channel.other is not None
            if self.elections.follow(place, channel.peer.incarnation):
                self.leader = place
                self.world.agents[place.rank].join(self.rank, channel.other)

        self.world.dial(self, place.addresses, joined)


class Owner:
    """The owner of a run, which looks for the head that the directory names."""

    voice_number = OWNER

    def __init__(self, world: World) -> None:
        self.world = world
        self.term = 1
        self._head: Any = None
        engine = SimpleNamespace(call_later=world.call_later)
        node: Any = SimpleNamespace(
            identity=SimpleNamespace(incarnation=OWNER),
            engine=engine,
            dial=lambda addresses, _member, done: world.dial(self, addresses, done),
        )
        self.voice = OwnerVoice(node)

    def receive(self, channel: Channel, frame: Frame) -> None:
        """Handle a message of the head, or of a candidate."""
        channel_: Any = channel
        assert self.voice.take(channel_, decode(frame.body), self._head)

    def seek(self) -> None:
        """Offer the voice, and follow a head once there is one."""
        self.voice.offer(0)
        self._look()

    def _look(self) -> None:
        if self.world.heads:
            term = max(self.world.heads)
            rank = self.world.heads[term]
            self.world.dial(self, [f"tcp://host{rank}:1"], partial(self._found, term, rank))
        else:
            self.world.call_later(0.1, self._look)

    def _found(self, term: int, rank: int, channel: Channel) -> None:
        if self.voice.follow(term, channel.peer.incarnation):
            assert channel.other is not None
            self.term, self._head = term, channel
            self.world.agents[rank].join(None, channel.other)
        else:
            self.voice.offer(0)
            self.world.call_later(0.1, self._look)


def entry(rank: int) -> HostEntry:
    """A host of this rank."""
    return HostEntry(rank, f"host{rank}", [f"tcp://host{rank}:1"], 1, "3.11", "1", [0], [], 1, {})


def elect(num_hosts: int, delay: Delay, noticed_s: Callable[[], float]) -> World:
    """Lose the head, of which each notices the loss at another time, and wait for 25 s, before anybody is fenced."""
    world = World(num_hosts, delay)
    for one in world.agents.values():
        world.call_later(noticed_s(), lambda one=one: one.elections.seek("no power", world.now_s))  # type: ignore[misc]
    world.call_later(noticed_s(), world.owner.seek)
    world.run(25.0)
    return world


def check_followed(world: World) -> None:
    assert world.fenced == []
    term = max(world.heads)
    assert {rank: one.leader.term for rank, one in world.agents.items() if one.leader} == dict.fromkeys(
        world.agents, term
    )
    assert world.owner.term == term
    world.run(120.0)
    assert world.fenced == [], "the head does not hear its voices"


@pytest.mark.parametrize("num_hosts", [4, 6])
def test_all_follow_the_head_that_was_elected_over_slow_channels(num_hosts: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)

        def delay(chance: random.Random = chance) -> float:
            return chance.uniform(0.0, 0.9 if chance.random() < 0.15 else 0.02)

        check_followed(elect(num_hosts, delay, lambda chance=chance: chance.uniform(0.0, 1.5)))  # type: ignore[misc]


def test_an_agent_that_is_reached_after_the_election_is_told_of_it() -> None:
    """Its voice was not needed: the candidate must not ask it for one any more, and it must not stand itself."""
    delays = itertools.chain([0.01] * 3, [0.3], itertools.repeat(0.01))  # the owner dials all three, rank 1 rank 2
    world = elect(4, lambda: next(delays), lambda: 0.0)
    check_followed(world)
    assert world.heads == {2: 1}
