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
    assert Electorate(1, 1, 1, Voters((1, 2, 3)), heeds_slurm=True).follower(Voters((1, 2)), {1, 2}) is None


def test_the_next_head_begins_with_the_electorate_that_elected_it() -> None:
    joint = Electorate(2, 2, 2, Voters((2, 3)), before=Voters((1, 2, 3)))
    assert joint.under(3, 3) == Electorate(3, 1, 3, Voters((2, 3)), before=Voters((1, 2, 3)))
