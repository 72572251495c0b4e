"""The voices that elect a head, and the steps in which an electorate changes."""

from __future__ import annotations

import pytest

from monarch_hpc.supervision.electorate import Electorate, Voters

OWNER = 100


@pytest.mark.parametrize(
    ("hosts", "voices", "gone", "elected"),
    [
        ((1, 2), {2, OWNER}, False, True),  # two hosts with a program: at once
        ((1, 2), {2}, False, False),
        ((1, 2), {2}, True, True),  # two hosts alone: when Slurm has spoken
        ((1, 2, 3), {2, 3}, False, True),
        ((1, 2, 3), {2, OWNER}, False, False),  # the owner's voice counts where the number is even
        ((1, 2, 3), {2, OWNER}, True, True),
        ((1, 2, 3, 4), {3, 4}, False, False),  # of a split one side rules
        ((1, 2, 3, 4), {3, 4, OWNER}, False, True),
        ((1, 2, 3, 4), {2, OWNER}, False, False),
        ((1, 2, 3), {1, 2}, False, False),  # the head itself elects nobody
    ],
)
def test_who_is_elected(hosts: tuple[int, ...], voices: set[int], gone: bool, elected: bool) -> None:
    assert Electorate(1, 1, 1, Voters(hosts, OWNER), heeds_slurm=True).elects(voices, head_gone=gone) is elected


@pytest.mark.parametrize(
    ("hosts", "owner", "voices", "may_go_on"),
    [
        ((1, 2), 0, {1}, True),  # nobody else can be elected
        ((1, 2), OWNER, {1}, False),
        ((1, 2), OWNER, {1, OWNER}, True),
        ((1, 2, 3), 0, {1}, False),
        ((1, 2, 3, 4), OWNER, {1, 2}, False),
        ((1, 2, 3, 4), OWNER, {1, 2, OWNER}, True),
    ],
)
def test_which_head_may_go_on(hosts: tuple[int, ...], owner: int, voices: set[int], may_go_on: bool) -> None:
    assert Electorate(1, 1, 1, Voters(hosts, owner)).hears(voices) is may_go_on


def test_a_change_passes_through_a_joint_electorate() -> None:
    first = Electorate(2, 1, 2, Voters((1, 2, 3, 4), OWNER), heeds_slurm=True)
    fewer = Voters((2, 3, 4), OWNER)
    assert first.follower(first.voters, {1, 2, 3, 4}) is None
    assert first.follower(fewer, {2, 3}) is None
    joint = first.follower(fewer, {2, 3, 4})
    assert joint == Electorate(2, 2, 2, fewer, before=first.voters, heeds_slurm=True)
    assert not joint.elects({3, OWNER}, head_gone=False) and joint.elects({3, 4, OWNER}, head_gone=False)
    assert joint.follower(fewer, {2, 3}) is None
    assert joint.follower(fewer, {2, 3, 4}) == Electorate(2, 3, 2, fewer, heeds_slurm=True)


def test_without_slurms_word_a_change_needs_fewer_voices() -> None:
    pair = Electorate(1, 1, 1, Voters((1, 2, 3)))
    assert not pair.elects({2}, head_gone=True)
    assert pair.follower(Voters((1, 2)), {1, 2}) is not None
    heeds = Electorate(1, 1, 1, Voters((1, 2, 3, 4, 5)), heeds_slurm=True)
    assert heeds.follower(Voters((1, 2, 3, 4)), {1, 2, 3}) is None
    assert heeds.follower(Voters((1, 2, 3, 4)), {1, 2, 3, 4}) is not None


@pytest.mark.parametrize(
    ("before", "left"),
    [
        (Voters((1, 2), OWNER), Voters((1,), OWNER)),  # Slurm's word would elect 2
        (Voters((1, 2, 3)), Voters((1, 2))),
        (Voters((1, 2, 3, 4)), Voters((1, 2))),
    ],
)
def test_an_electorate_whose_missing_voices_never_agree_is_closed(before: Voters, left: Voters) -> None:
    joint, known = Electorate(1, 2, 1, left, before=before, heeds_slurm=True), left.all
    assert joint.follower(left, {1}) is None
    closing = joint.follower(left, known)
    assert closing == Electorate(1, 3, 1, left, before=before, heeds_slurm=True, closed=True)
    assert not closing.elects(before.all, head_gone=True)
    assert not closing.hears({1}) or before.at_least_half({1})
    closed = closing.follower(left, known)
    assert closed == Electorate(1, 4, 1, left, heeds_slurm=True, closed=True)
    assert closed.follower(Voters((1,)), {1}) == Electorate(1, 5, 1, Voters((1,)), heeds_slurm=True, closed=True)


def test_an_electorate_is_not_closed_while_hosts_may_still_come() -> None:
    """A new head has heard one of its three followers, so far."""
    electorate = Electorate(2, 1, 2, Voters((1, 2, 3, 4)))
    assert electorate.follower(Voters((2, 3)), {2, 3}, complete=False) is None
    change = electorate.follower(Voters((2, 3, 4)), {2, 3, 4}, complete=False)
    assert change == Electorate(2, 2, 2, Voters((2, 3, 4)), before=Voters((1, 2, 3, 4)))
    closed = electorate.follower(Voters((2, 3)), {2, 3})
    assert closed is not None and closed.closed


def test_an_electorate_is_not_closed_while_the_missing_voices_may_elect() -> None:
    joint = Electorate(1, 2, 1, Voters((1,)), before=Voters((1, 2), OWNER), heeds_slurm=True)
    assert joint.follower(Voters((1,)), {1}) is None


def test_the_next_head_begins_with_the_electorate_that_elected_it() -> None:
    joint = Electorate(2, 2, 2, Voters((2, 3)), before=Voters((1, 2, 3)))
    assert joint.under(3, 3) == Electorate(3, 1, 3, Voters((2, 3)), before=Voters((1, 2, 3)))


def test_the_electorate_of_one_host_elects_nobody_and_grows() -> None:
    first = Electorate(1, 1, 1, Voters((1,), OWNER), heeds_slurm=True)
    more = Voters((1, 2))
    joint = first.follower(more, {1})
    assert joint == Electorate(1, 2, 1, more, before=first.voters, heeds_slurm=True)
    assert joint.follower(more, {1}, complete=False) is None
    assert joint.follower(more, {1, 2}) == Electorate(1, 3, 1, more, heeds_slurm=True)
