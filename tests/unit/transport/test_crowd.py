"""Whoever floods a gate displaces only himself."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.transport.connect.half_open import GRACE_S, MAX_PER_ADDRESS, SLOW_S, HalfOpen


@dataclass(eq=False)
class Somebody:
    host: str
    at_s: float
    greeted: bool = False


def crowd_of(*people: Somebody, limit: int = 64) -> HalfOpen[Somebody]:
    crowd: HalfOpen[Somebody] = HalfOpen(limit, 5.0)
    for somebody in people:
        crowd.add(somebody)
    return crowd


def test_who_has_the_most_connections_loses_the_oldest_of_them() -> None:
    first = Somebody("alice", 0.0)
    flood = [Somebody("bob", 0.1 + index / 1000) for index in range(3)]
    crowd = crowd_of(first, *flood, limit=4)
    assert crowd.full
    assert crowd.foremost(1.0) is flood[0]
    crowd.remove(flood[0])
    assert not crowd.full


def test_everybody_has_a_moment_even_in_a_full_crowd() -> None:
    crowd = crowd_of(Somebody("bob", 1.0), limit=1)
    assert crowd.foremost(1.0 + GRACE_S / 2) is None
    assert crowd.foremost(1.0 + GRACE_S) is next(iter(crowd))


def test_who_greeted_with_the_key_goes_last() -> None:
    greeted = [Somebody("login", 0.0, greeted=True) for _ in range(3)]
    stranger = Somebody("bob", 0.5)
    crowd = crowd_of(*greeted, stranger)
    assert crowd.foremost(1.0) is stranger
    crowd.remove(stranger)
    assert crowd.foremost(SLOW_S - 0.1) is None, "it has been answered, and does not try again"
    assert crowd.foremost(SLOW_S) is greeted[0]


def test_of_one_address_only_a_few_may_be_slow() -> None:
    slow = [Somebody("bob", 0.0) for _ in range(MAX_PER_ADDRESS + 3)]
    alice = Somebody("alice", 0.0)
    fresh = Somebody("bob", SLOW_S)
    crowd = crowd_of(*slow, alice, fresh)
    assert crowd.due(SLOW_S / 2) == []
    assert crowd.next_s() == SLOW_S
    assert crowd.due(SLOW_S) == slow[:4]
    for gone in slow[:4]:
        crowd.remove(gone)
    assert crowd.next_s() == 5.0
    assert crowd.due(5.0) == [*slow[4:], alice]


def test_many_slow_ones_of_one_address_stay_if_they_have_greeted_with_the_key() -> None:
    procs = [Somebody("bob", 0.0, greeted=True) for _ in range(MAX_PER_ADDRESS * 4)]
    crowd = crowd_of(*procs)
    assert crowd.due(SLOW_S * 2) == []
    assert crowd.next_s() == 5.0
    assert crowd.due(5.0) == procs


def test_nobody_is_due_in_an_empty_crowd() -> None:
    crowd = crowd_of()
    assert (crowd.next_s(), crowd.due(9.0), crowd.foremost(9.0), len(crowd)) == (None, [], None, 0)


@given(
    hosts=st.lists(st.sampled_from("abc"), max_size=80),
    gap_s=st.floats(0, 0.2),
    later_s=st.floats(0, 10),
)
def test_who_is_due_has_had_his_time_and_the_rest_is_within_the_limits(
    hosts: list[str], gap_s: float, later_s: float
) -> None:
    people = [Somebody(host, index * gap_s) for index, host in enumerate(hosts)]
    crowd = crowd_of(*people)
    now_s = len(people) * gap_s + later_s
    due = crowd.due(now_s)
    assert all(now_s - somebody.at_s >= SLOW_S for somebody in due)
    stay = [somebody for somebody in people if somebody not in due]
    assert all(now_s - somebody.at_s < 5.0 for somebody in stay)
    for host in set(hosts):
        assert sum(one.host == host and now_s - one.at_s >= SLOW_S for one in stay) <= MAX_PER_ADDRESS
    # Whoever sleeps until the time it is told misses nobody.
    next_s = crowd.next_s()
    assert not due or (next_s is not None and next_s <= now_s)


def test_removing_a_stranger_twice_is_our_mistake() -> None:
    somebody = Somebody("bob", 0.0)
    crowd = crowd_of(somebody)
    crowd.remove(somebody)
    with pytest.raises(KeyError):
        crowd.remove(somebody)
