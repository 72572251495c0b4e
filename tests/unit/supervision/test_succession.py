"""An agent's part in a succession: its turn, its voice, and when it stops; all interleavings are in tests/property."""

from __future__ import annotations

import pytest

from monarch_hpc.supervision.electorate import Voters
from monarch_hpc.supervision.succession import Ballot, Candidacy, Duty, Part, Patience, Succession

PATIENCE = Patience(1.0, 30.0, 600.0, 15.0)
OWNER = 100


@pytest.fixture
def agents() -> dict[int, Succession]:
    """Four agents, of which the first rules term 1."""
    agents = {own: Succession(own, PATIENCE) for own in (1, 2, 3, 4)}
    agents[1].found(Voters((1, 2, 3, 4), OWNER), 0.0)
    electorate = agents[1].electorate
    assert electorate is not None
    for own in (2, 3, 4):
        assert agents[own].follow(1, 1) and agents[own].announce(electorate)
    return agents


def test_the_lowest_rank_stands_first(agents: dict[int, Succession]) -> None:
    for own in (2, 3, 4):
        assert agents[own].lose_at(1, 1, 10.0)
    assert [agents[own].due(10.0) for own in (2, 3, 4)] == [Duty.STAND, None, None]
    assert [agents[own].due(11.0) for own in (3, 4)] == [Duty.STAND, None]
    assert agents[2].stand(10.0) == Candidacy(2, 2, (1, 1))
    assert [agents[2].due(at_s) for at_s in (11.9, 12.0)] == [None, Duty.STAND]


def test_the_others_may_notice_the_loss_later(agents: dict[int, Succession]) -> None:
    agents[2].lose_at(1, 1, 10.0, 25.0)
    agents[3].lose_at(1, 1, 10.0, 9.0)
    assert [agents[own].due(40.0) for own in (2, 3)] == [Duty.STAND, Duty.FENCE]
    assert agents[2].due(55.0) is Duty.FENCE


def test_a_head_is_elected_once_and_followed(agents: dict[int, Succession]) -> None:
    for own in (2, 3):
        agents[own].lose_at(1, 1, 10.0)
    candidacy = agents[2].stand(10.0)
    assert candidacy is not None
    assert [agents[own].give_at(candidacy, 10.0) for own in (3, 4)] == [True, False]  # one hears the head
    assert agents[3].due(11.0) is None  # it waits for its candidate
    agents[2].count(2, 3)
    assert not agents[2].rule(10.0)
    assert not agents[3].give_at(Candidacy(2, 4, (1, 1)), 10.0)
    owner = Ballot(OWNER)
    assert owner.give(candidacy) and not owner.give(Candidacy(2, 3, (1, 1)))
    agents[2].count(2, OWNER)
    assert agents[2].rule(10.0) and not agents[2].rule(10.0)
    assert agents[4].follow(2, 2) and not agents[4].takes_orders(1, 1) and not agents[4].follow(1, 1)
    assert agents[2].electorate is not None
    assert agents[4].announce(agents[2].electorate)
    assert not agents[4].give(Candidacy(3, 3, (1, 1)))


def test_a_candidate_learns_of_later_terms(agents: dict[int, Succession]) -> None:
    agents[2].lose_at(1, 1, 10.0)
    agents[2].stand(10.0)
    agents[2].see_term(7)
    agents[2].count(2, 3)
    assert not agents[2].rule(10.0)
    assert agents[2].stand(11.0) == Candidacy(8, 2, (1, 1))


def test_a_head_in_the_minority_stops_and_leaves(agents: dict[int, Succession]) -> None:
    head = agents[1]
    head.hear(frozenset({1, 2, OWNER}), 5.0)
    for at_s in range(10, 35, 5):
        head.hear(frozenset({1, 2}), at_s)
    assert head.due(34.9) is None
    assert (head.due(35.0), head.part) == (Duty.FENCE, Part.FENCED)
    assert [head.due(at_s) for at_s in (36.0, 634.0, 635.0)] == [None, None, Duty.LEAVE]
    assert not head.follow(2, 2) and not head.give_at(Candidacy(2, 2, (1, 1)), 36.0)


def test_a_head_that_stood_still_doubts_until_it_hears_the_voices_again(agents: dict[int, Succession]) -> None:
    head, everybody = agents[1], frozenset({1, 2, 3, 4})
    for at_s in (1.0, 2.0, 3.0):
        head.hear(everybody, at_s)
    assert not head.doubts(10.4)
    assert head.doubts(10.5), "no look for half of the time after which its followers elect another head"
    head.hear(everybody, 20.0)
    assert head.doubts(20.0), "links that have ended meanwhile are not seen at the first look"
    head.hear(frozenset({1}), 21.0)
    assert head.doubts(21.0)
    head.hear(everybody, 22.0)
    assert not head.doubts(22.0)
    head.hear(frozenset({1}), 23.0)
    assert not head.doubts(23.0), "a head that watches its followers go knows why"


def test_a_head_whose_followers_have_left_it_while_it_stood_still_is_fenced(agents: dict[int, Succession]) -> None:
    head = agents[1]
    head.hear(frozenset({1, 2, 3, 4}), 100.0)
    assert head.doubts(100.0) and head.due(100.0) is None, "it must look once more: its followers may be there"
    head.hear(frozenset({1}), 101.0)
    assert head.due(101.0) is Duty.FENCE and not head.doubts(101.0)


def test_a_head_that_was_suspended_with_its_followers_rules_on(agents: dict[int, Succession]) -> None:
    head = agents[1]
    for at_s in (3600.0, 3601.0, 3602.0):
        head.hear(frozenset({1, 2, 3, 4}), at_s)
        assert head.due(at_s) is None
    assert not head.doubts(3602.0)


def test_an_agent_without_a_head_stops(agents: dict[int, Succession]) -> None:
    assert not agents[4].lose_at(2, 2, 10.0)
    agents[4].lose_at(1, 1, 10.0)
    assert agents[4].due(40.0) is Duty.FENCE
    assert agents[4].stand(41.0) is None


def test_the_electorate_changes_when_most_have_acknowledged_it(agents: dict[int, Succession]) -> None:
    head, fewer = agents[1], Voters((1, 2, 3), OWNER)
    assert head.change(fewer) is None
    for own in (2, 3):
        head.acknowledge((1, 1), own)
    joint = head.change(fewer)
    assert joint is not None and joint.before is not None
    head.acknowledge((1, 1), 4)
    assert head.change(fewer) is None
    for own in (2, 3):
        assert agents[own].announce(joint)
        head.acknowledge(joint.order, own)
    settled = head.change(fewer)
    assert settled is not None and settled.before is None and settled.voters == fewer


def test_a_candidate_that_has_lost_follows_the_head_of_its_term(agents: dict[int, Succession]) -> None:
    """A cable was out: the first host stood before others had noticed the loss, and another one was elected."""
    for own in (2, 3, 4):
        agents[own].lose_at(1, 1, 10.0)
    owner, first = Ballot(OWNER), agents[2].stand(10.0)
    second = agents[4].stand(11.0)
    assert first is not None and second is not None and (first.term, second.term) == (2, 2)
    assert agents[3].give_at(second, 11.0) and owner.give(second)
    agents[4].count(2, 3)
    agents[4].count(2, OWNER)
    assert agents[4].rule(11.0)
    assert agents[2].stand(12.0) == first, "not for a later term, in which others could give their voices"
    assert not owner.give(first)
    assert agents[2].follow(2, 4) and owner.follow(2, 4)
    assert not agents[2].follow(2, 3), "a term has one head"


def test_a_candidacy_is_repeated_once(agents: dict[int, Succession]) -> None:
    agents[2].lose_at(1, 1, 10.0)
    terms = [candidacy.term for at_s in (10.0, 12.0, 14.0, 16.0) if (candidacy := agents[2].stand(at_s)) is not None]
    assert terms == [2, 2, 3, 3]


def test_a_candidate_that_was_not_told_of_the_head_withdraws(agents: dict[int, Succession]) -> None:
    """It has stood for later terms meanwhile; those who gave it their voice follow once they know."""
    for own in (2, 3, 4):
        agents[own].lose_at(1, 1, 10.0)
    head, late, voter = agents[2], agents[3], agents[4]
    first = head.stand(10.0)
    assert first is not None and voter.give_at(first, 10.0)
    head.count(2, 4)
    head.count(2, OWNER)
    assert head.rule(10.0)
    late.stand(11.0)
    late.stand(14.0)
    second = late.stand(17.0)
    assert second is not None and second.term == 3
    assert voter.give_at(second, 17.0)
    assert not voter.follow(2, 2), "the later candidate may count its voice"
    voter.take_back(3, 2)
    assert not voter.follow(2, 2), "only earlier candidacies are withdrawn"
    assert late.follow(2, 2) and late.withdrawn == 3
    voter.take_back(3, late.withdrawn)
    assert voter.follow(2, 2) and voter.takes_orders(2, 2)
    late.lose_at(2, 2, 20.0)
    for voice in (1, 4, OWNER):
        late.count(3, voice)
    assert not late.rule(20.0), "the voices of a candidacy that was withdrawn"
    third = late.stand(20.0)
    assert third is not None and third.term == 4
