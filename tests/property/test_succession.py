"""No interleaving of losses, delays and splits makes two heads of a term, or an agent that takes orders of two.

A head whose electorate elects nobody any more rules alone, unless Slurm's word about a host that lives elects another.

Messages that were sent can be delivered at any time, any number of times, or never: that covers losses, delays,
repetitions and splits. Slurm may say at any time that a head's host has left the job, also of one that lives. An agent
may be fenced at any time, and begins anew then, as another voice without a memory.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_hpc.supervision.electorate import Electorate, Voters
from monarch_hpc.supervision.succession import Ballot, Candidacy, Duty, Part, Patience, Succession

OWNER = 100
PATIENCE = Patience(1.0, 30.0, 600.0, 15.0)
MAX_VOICES = 8
"""Of all incarnations of agents, so that worlds stay small."""
Action = Callable[["World"], None]


class ContradictionError(Exception):
    """Two heads of a term, one of a replaced electorate, an agent with orders of two, or a head beside the last one."""


class World:
    """The agents 1 to *num_hosts*, the owner of a run, and all messages that were ever sent.

    Args:
        max_voices: number of all incarnations of agents; 0 if none begins anew.
        slurm_speaks: whether Slurm may say that hosts have left the job.
    """

    def __init__(
        self,
        num_hosts: int,
        max_term: int,
        mutant: type = Succession,
        *,
        heeds_slurm: bool = True,
        max_voices: int = MAX_VOICES,
        slurm_speaks: bool = True,
    ) -> None:
        machine = mutant if issubclass(mutant, Succession) else type("Agent", (mutant, Succession), {})
        ballot = Ballot if issubclass(mutant, Succession) else type("Owner", (mutant, Ballot), {})
        self.machine = machine
        self.num_voices, self.max_voices = num_hosts, max_voices
        self.agents: dict[int, Succession] = {own: machine(own, PATIENCE) for own in range(1, num_hosts + 1)}
        self.ballot: Ballot = ballot(OWNER)
        self.max_term = max_term
        self.asked: set[Candidacy] = set()
        self.given: set[tuple[int, int, int]] = set()  # term, candidate, voice
        self.announced: set[Electorate] = set()
        self.acknowledged: set[tuple[tuple[int, int], int]] = set()
        self.withdrawn: set[tuple[int, int]] = set()  # candidate, its last term
        self.heads: dict[int, int] = {1: 1}
        self.elected_by: dict[int, tuple[int, int]] = {}  # electorates that have elected the heads of terms
        self.replaced: set[tuple[int, int]] = set()  # electorates that may have been followed by another one
        self.orders: dict[int, tuple[int, int]] = {}
        self.slurm_speaks = slurm_speaks
        self.has_spoken = False  # Slurm has said that the host of a head has left the job
        self.agents[1].found(Voters(tuple(self.agents), OWNER), 0.0, heeds_slurm=heeds_slurm)
        self._announce(1)
        for voter in (self.ballot, *self.agents.values()):
            if voter.own != 1:
                voter.follow(1, 1)
                self._hear(voter, next(iter(self.announced)))

    def copy(self) -> World:
        """A world that changes by itself."""
        other = copy.copy(self)
        other.ballot = copy.copy(self.ballot)
        other.agents = {own: copy.copy(agent) for own, agent in self.agents.items()}
        for agent in other.agents.values():
            agent._voices, agent._acknowledged = set(agent._voices), set(agent._acknowledged)
        for name in ("asked", "given", "announced", "acknowledged", "withdrawn", "replaced"):
            setattr(other, name, set(getattr(self, name)))
        other.elected_by = dict(self.elected_by)
        other.heads, other.orders = dict(self.heads), dict(self.orders)
        return other

    def key(self) -> object:
        """Equal for worlds with the same future."""
        agents = tuple(
            (agent.own, agent.part, agent.term, agent.choice, agent.has_head, agent.electorate, agent.head_gone)
            for agent in self.agents.values()
        )
        voters = (self.ballot, *self.agents.values())
        past = tuple((voter.followed, *voter._given.items()) for voter in voters)
        stood = tuple((agent.withdrawn, agent._stood) for agent in self.agents.values())
        ballot = self.ballot.term, self.ballot.choice, self.ballot.has_head, self.ballot.electorate, past, stood
        messages = frozenset(self.asked), frozenset(self.given), frozenset(self.announced), frozenset(self.acknowledged)
        told = frozenset(self.heads.items()), frozenset(self.orders.items()), self.has_spoken, frozenset(self.withdrawn)
        return agents, ballot, messages, told

    def actions(self) -> list[list[Action]]:
        """All that can happen next and changes something, by kind."""
        kinds: list[list[Action]] = [[] for _ in range(9)]
        lose, stand, gone, elect, change, ask, order, anew, take_back = kinds
        for own, agent in self.agents.items():
            if agent.part is Part.FOLLOWS:
                lose.append(partial(World.lose, voice=own))
            if agent.part is Part.SEEKS and agent.term < self.max_term:
                stand.append(partial(World.stand, own=own))
            if agent.part is Part.SEEKS and not agent.head_gone and self.slurm_speaks:
                gone.append(partial(World.say_gone, own=own))
            if agent.part is Part.SEEKS and any(one[:2] == (agent.term, own) for one in self.given):
                elect.append(partial(World.elect, own=own))
            if agent.part in (Part.SEEKS, Part.RULES) and self.num_voices < self.max_voices:
                anew.append(partial(World.begin_anew, own=own))
            if agent.part is Part.RULES:
                others = [voice for voice in self.agents if voice != own]
                for lost in ((), *((one,) for one in others), others[1:]):
                    for owner in (OWNER, 0):
                        change.append(partial(World.change, own=own, lost=tuple(lost), owner=owner))
        if self.ballot.has_head:
            lose.append(partial(World.lose, voice=OWNER))
        for voice in (OWNER, *self.agents):
            voter = self.voter(voice)
            for candidacy in sorted(self.asked, key=str):
                if voice != candidacy.candidate and not voter.has_head and candidacy.term >= voter.term:
                    ask.append(partial(World.ask, voice=voice, candidacy=candidacy))
            for electorate in sorted(self.announced, key=lambda each: (each.order, each.head)):
                if (electorate.order, voice) not in self.acknowledged:
                    order.append(partial(World.order, voice=voice, electorate=electorate))
            for candidate, until in sorted(self.withdrawn):
                if any(one == candidate and term <= until for term, one in voter._given.items()):
                    take_back.append(partial(World.take_back, voice=voice, candidate=candidate, until=until))
        return [kind for kind in kinds if kind]

    def voter(self, voice: int) -> Ballot:
        """The ballot of a voice."""
        return self.ballot if voice == OWNER else self.agents[voice]

    def lose(self, voice: int) -> None:
        """A follower loses contact with its head."""
        voter = self.voter(voice)
        if isinstance(voter, Succession):
            voter.lose_at(*voter.followed, 0.0)
        else:
            voter.lose(*voter.followed)

    def begin_anew(self, own: int) -> None:
        """An agent is fenced, and its next incarnation takes its host; what it has sent may still arrive."""
        assert self.agents[own].due(PATIENCE.fence_s) is Duty.FENCE
        self.num_voices += 1
        self.agents = {
            number: self.machine(number, PATIENCE) if number == self.num_voices else agent
            for number, agent in ((self.num_voices if old == own else old, one) for old, one in self.agents.items())
        }

    def stand(self, own: int) -> None:
        """An agent becomes a candidate."""
        if (candidacy := self.agents[own].stand(0.0)) is not None:
            self.asked.add(candidacy)

    def say_gone(self, own: int) -> None:
        """Slurm says to an agent that the host of its head has left the job."""
        self.agents[own].head_gone = self.has_spoken = True

    def ask(self, voice: int, candidacy: Candidacy) -> None:
        """A candidate's request reaches a voter."""
        voter = self.voter(voice)
        gives = voter.give_at(candidacy, 0.0) if isinstance(voter, Succession) else voter.give(candidacy)
        if gives:
            self.given.add((candidacy.term, candidacy.candidate, voice))
        elif isinstance(voter, Succession):
            voter.see_term(min(candidacy.term - 1, self.max_term))

    def take_back(self, voice: int, candidate: int, until: int) -> None:
        """A candidate's word that it has withdrawn reaches a voter."""
        self.voter(voice).take_back(candidate, until)

    def elect(self, own: int) -> None:
        """The voices reach a candidate; it becomes the head if they suffice."""
        agent, electorate = self.agents[own], self.agents[own].electorate
        for term, candidate, voice in self.given:
            if candidate == own:
                agent.count(term, voice)
        if agent.rule(0.0):
            assert electorate is not None
            self.elected_by[agent.term] = electorate.order
            self._check_electorates()
            if self.heads.setdefault(agent.term, own) != own:
                raise ContradictionError(f"heads {self.heads[agent.term]} and {own} of term {agent.term}")
            self._announce(own)
            self._check_closed()

    def change(self, own: int, lost: Sequence[int], owner: int) -> None:
        """A head has heard the acknowledgements, and lost hosts; its oldest run has an owner, or 0."""
        agent, last = self.agents[own], self.agents[own].electorate
        for order, voice in self.acknowledged:
            agent.acknowledge(order, voice)
        following = agent.change(Voters(tuple(voice for voice in self.agents if voice not in lost), owner))
        if following is not None:
            if last is not None and not following.closed:
                self.replaced.add(last.order)
                self._check_electorates()
            self._announce(own)
            self._check_closed()

    def _check_electorates(self) -> None:
        """Once an electorate is replaced, none before it elects the head of a later term."""
        for term, order in self.elected_by.items():
            for replaced in self.replaced:
                if order < replaced and replaced[0] < term:
                    raise ContradictionError(f"{order} elected the head of term {term}, but {replaced} was replaced")

    def _check_closed(self) -> None:
        """A head that has lost voices for good, and nevertheless goes on, is the last one."""
        for head in self.agents.values():
            electorate = head.electorate
            if head.part is not Part.RULES or electorate is None or not electorate.closed or self.has_spoken:
                continue
            last = next(one for one in self.announced if one.order == electorate.order and one.head == head.own)
            shrunk = any(
                one.closed and one.order < last.order and one.head == head.own and one.term == last.term
                for one in self.announced
            )
            if shrunk and max(self.heads) > head.term:
                raise ContradictionError(f"{head.own} rules alone, and {self.heads[max(self.heads)]} was elected")

    def order(self, voice: int, electorate: Electorate) -> None:
        """A head's message reaches an agent, which follows it and carries out its order, or refuses."""
        voter, sent = self.voter(voice), (electorate.term, electorate.head)
        if voice == electorate.head or not voter.follow(*sent):
            return
        if isinstance(voter, Succession) and voter.withdrawn > voter.followed[0]:
            self.withdrawn.add((voice, voter.withdrawn))
        self._hear(voter, electorate)
        if voter.takes_orders(*sent):
            last = self.orders.get(voice, (0, 0))
            if sent < last or (sent[0] == last[0] and sent != last):
                raise ContradictionError(f"{voice} takes the orders of {sent} after those of {last}")
            self.orders[voice] = sent

    def _announce(self, own: int) -> None:
        electorate = self.agents[own].electorate
        assert electorate is not None
        self.announced.add(electorate)

    def _hear(self, voter: Ballot, electorate: Electorate) -> None:
        if voter.announce(electorate):
            self.acknowledged.add((electorate.order, voter.own))


class GivesTwice(Ballot):
    """Gives its voice to each candidate of a term."""

    def give(self, candidacy: Candidacy) -> bool:
        """Forget the choice."""
        if self.term == candidacy.term:
            self.choice = 0
        return super().give(candidacy)


class ChecksNoTerm(Ballot):
    """Follows a head whose term is over."""

    def follow(self, term: int, head: int) -> bool:
        """Forget the last head."""
        self.followed = 0, 0
        return super().follow(term, head)


class FollowsWithoutItsVoice(Ballot):
    """Follows a head although a candidate of a later term may be elected by its voice."""

    def follow(self, term: int, head: int) -> bool:
        """Forget to whom it has given its voice."""
        self._given = {}
        return super().follow(term, head)


class WithdrawsNothing(Succession):
    """Counts the voices of candidacies from which it has withdrawn."""

    def count(self, term: int, voice: int) -> None:
        """Forget that it has followed a head."""
        self.withdrawn = 0
        super().count(term, voice)


class ClosesAtOnce(Succession):
    """Takes its electorate for closed before the others know of that."""

    def change(
        self, voters: Voters, *, complete: bool = True, leaving: frozenset[int] = frozenset()
    ) -> Electorate | None:
        """Acknowledge for all."""
        if self.electorate is not None and self.electorate.closed:
            self._acknowledged.update(self.electorate.voters.all, voters.all)
            if self.electorate.before is not None:
                self._acknowledged |= self.electorate.before.all
        return super().change(voters, complete=complete, leaving=leaving)


class ChangesAtOnce(Succession):
    """Changes the electorate without the consent of the one before."""

    def change(
        self, voters: Voters, *, complete: bool = True, leaving: frozenset[int] = frozenset()
    ) -> Electorate | None:
        """Do not wait for acknowledgements."""
        if self.part is not Part.RULES or self.electorate is None or self.electorate.voters == voters:
            return None
        self.electorate = replace(self.electorate, number=self.electorate.number + 1, voters=voters)
        return self.electorate


def explore(world: World, max_worlds: int) -> int:
    """Walk through all interleavings, breadth first; return the number of worlds seen."""
    seen = {world.key()}
    edge = [world]
    while edge and len(seen) < max_worlds:
        reached = []
        for one in edge:
            for action in [action for kind in one.actions() for action in kind]:
                following = one.copy()
                action(following)
                if (key := following.key()) not in seen:
                    seen.add(key)
                    reached.append(following)
        edge = reached
    return len(seen)


def walk(world: World, choices: Sequence[int]) -> None:
    """Walk along one interleaving."""
    for choice in choices:
        if not (kinds := world.actions()):
            return
        kind = kinds[choice % len(kinds)]
        kind[choice // len(kinds) % len(kind)](world)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.integers(2, 5), st.booleans(), st.booleans(), st.lists(st.integers(0, 10_000), min_size=30, max_size=120))
def test_a_term_has_one_head_on_long_walks(
    num_hosts: int, heeds_slurm: bool, slurm_speaks: bool, choices: list[int]
) -> None:
    walk(World(num_hosts, 6, heeds_slurm=heeds_slurm, slurm_speaks=slurm_speaks), choices)


def test_a_term_has_one_head_in_all_short_interleavings() -> None:
    assert explore(World(3, 2), 2_000) >= 2_000


@pytest.mark.parametrize(
    ("mutant", "num_hosts", "slurm_speaks"),
    [
        (GivesTwice, (4, 5), True),
        (ChecksNoTerm, (4, 5), True),
        (FollowsWithoutItsVoice, (4, 5), True),
        (WithdrawsNothing, (4, 5), True),
        (ChangesAtOnce, (4, 5), True),
        (ClosesAtOnce, (2, 3), False),
    ],
)
def test_the_model_finds_each_mistake(mutant: type, num_hosts: tuple[int, int], slurm_speaks: bool) -> None:
    chance = random.Random(1)

    def search() -> None:
        for _ in range(2_000):
            world = World(chance.randint(*num_hosts), 3, mutant, max_voices=0, slurm_speaks=slurm_speaks)
            walk(world, [chance.randrange(10_000) for _ in range(120)])

    with pytest.raises(ContradictionError):
        search()
