"""A flood of half-open connections displaces only connections from its own address."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.transport.connect.half_open import GRACE_S, MAX_PER_ADDRESS, SLOW_S, HalfOpen


@dataclass(eq=False)
class Arrival:
    host: str
    at_s: float
    greeted: bool = False


def half_open_of(*arrivals: Arrival, limit: int = 64) -> HalfOpen[Arrival]:
    half_open: HalfOpen[Arrival] = HalfOpen(limit, 5.0)
    for arrival in arrivals:
        half_open.add(arrival)
    return half_open


def test_who_has_the_most_connections_loses_the_oldest_of_them() -> None:
    first = Arrival("alice", 0.0)
    flood = [Arrival("bob", 0.1 + index / 1000) for index in range(3)]
    half_open = half_open_of(first, *flood, limit=4)
    assert half_open.full
    assert half_open.evictable(1.0) is flood[0]
    half_open.remove(flood[0])
    assert not half_open.full


def test_everybody_has_a_moment_even_in_a_full_crowd() -> None:
    half_open = half_open_of(Arrival("bob", 1.0), limit=1)
    assert half_open.evictable(1.0 + GRACE_S / 2) is None
    assert half_open.evictable(1.0 + GRACE_S) is next(iter(half_open))


def test_who_greeted_with_the_key_goes_last() -> None:
    greeted = [Arrival("login", 0.0, greeted=True) for _ in range(3)]
    stranger = Arrival("bob", 0.5)
    half_open = half_open_of(*greeted, stranger)
    assert half_open.evictable(1.0) is stranger
    half_open.remove(stranger)
    assert half_open.evictable(SLOW_S - 0.1) is None, "it has been answered, and does not try again"
    assert half_open.evictable(SLOW_S) is greeted[0]


def test_of_one_address_only_a_few_may_be_slow() -> None:
    slow = [Arrival("bob", 0.0) for _ in range(MAX_PER_ADDRESS + 3)]
    alice = Arrival("alice", 0.0)
    fresh = Arrival("bob", SLOW_S)
    half_open = half_open_of(*slow, alice, fresh)
    assert half_open.due(SLOW_S / 2) == []
    assert half_open.next_s() == SLOW_S
    assert half_open.due(SLOW_S) == slow[:4]
    for gone in slow[:4]:
        half_open.remove(gone)
    assert half_open.next_s() == 5.0
    assert half_open.due(5.0) == [*slow[4:], alice]


def test_many_slow_ones_of_one_address_stay_if_they_have_greeted_with_the_key() -> None:
    procs = [Arrival("bob", 0.0, greeted=True) for _ in range(MAX_PER_ADDRESS * 4)]
    half_open = half_open_of(*procs)
    assert half_open.due(SLOW_S * 2) == []
    assert half_open.next_s() == 5.0
    assert half_open.due(5.0) == procs


def test_nobody_is_due_in_an_empty_crowd() -> None:
    half_open = half_open_of()
    assert (half_open.next_s(), half_open.due(9.0), half_open.evictable(9.0), len(half_open)) == (None, [], None, 0)


@given(
    hosts=st.lists(st.sampled_from("abc"), max_size=80),
    gap_s=st.floats(0, 0.2),
    later_s=st.floats(0, 10),
)
def test_who_is_due_has_had_his_time_and_the_rest_is_within_the_limits(
    hosts: list[str], gap_s: float, later_s: float
) -> None:
    arrivals = [Arrival(host, index * gap_s) for index, host in enumerate(hosts)]
    half_open = half_open_of(*arrivals)
    now_s = len(arrivals) * gap_s + later_s
    due = half_open.due(now_s)
    assert all(now_s - arrival.at_s >= SLOW_S for arrival in due)
    stay = [arrival for arrival in arrivals if arrival not in due]
    assert all(now_s - arrival.at_s < 5.0 for arrival in stay)
    for host in set(hosts):
        assert sum(one.host == host and now_s - one.at_s >= SLOW_S for one in stay) <= MAX_PER_ADDRESS
    # Sleeping until `next_s` misses no connection that is due.
    next_s = half_open.next_s()
    assert not due or (next_s is not None and next_s <= now_s)


def test_removing_a_stranger_twice_is_our_mistake() -> None:
    arrival = Arrival("bob", 0.0)
    half_open = half_open_of(arrival)
    half_open.remove(arrival)
    with pytest.raises(KeyError):
        half_open.remove(arrival)
