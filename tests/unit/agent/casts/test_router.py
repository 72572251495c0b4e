"""A cast reaches the lives that it names: for one that has ended, its cause is the answer, whoever has its rank now."""

from __future__ import annotations

import pytest

from monarch_hpc.testing.simulated_allocation import SimulatedAllocation
from monarch_hpc.wire.casts import NoteKind

_ALL = dict.fromkeys(range(4), NoteKind.RESULT)
_DIED = {**_ALL, 1: NoteKind.DIED}


@pytest.mark.parametrize("host", [0, 1])
def test_a_cast_reaches_no_other_life_than_it_names(host: int) -> None:
    allocation = SimulatedAllocation(num_hosts=2, per_host=2, fanout=2)
    allocation.kill_proc(1)
    new = allocation.restart_proc(1, host)

    def answers(lives: dict[int, int]) -> dict[int, NoteKind]:
        number = allocation.cast(lives=lives)
        allocation.run()
        return allocation.sender.answers[number]

    assert answers({}) == _DIED
    assert new.seen == []
    assert answers({1: 1}) == _ALL
    assert (new.seen, allocation.procs[1].seen) == ([2], [])
    allocation.end_restarted(new)
    assert answers({1: 1}) == answers({}) == _DIED
    assert new.seen == [2]


def test_a_cast_is_answered_for_lives_that_nobody_remembers() -> None:
    allocation = SimulatedAllocation(num_hosts=2, per_host=2, fanout=2)
    allocation.kill_proc(1)
    for _ in range(9):
        new = allocation.restart_proc(1, 0)
        allocation.end_restarted(new)
    for life in (0, 3, 9):
        number = allocation.cast(lives={1: life})
        allocation.run()
        assert allocation.sender.answers[number] == _DIED


def test_a_cast_in_flight_ends_with_the_life_that_it_was_for() -> None:
    allocation = SimulatedAllocation(num_hosts=2, per_host=2, fanout=2)
    number = allocation.cast()
    allocation.run(1)
    allocation.kill_proc(1)
    new = allocation.restart_proc(1, 0)
    allocation.run()
    assert allocation.sender.answers[number] == _DIED and new.seen == []
