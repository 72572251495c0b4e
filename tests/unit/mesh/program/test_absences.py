"""Lost hosts of a program: what waits for their return, and which hosts take their place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.mesh.program.allocations.absences import HostAbsences
from monarch_hpc.wire.control.allocation import HostEnded, HostEntry

N1 = HostEntry(1, "n1", [], 1, "3.11", "0.1", [0], [], 1, {}, incarnation="a")
ENDED = HostEnded("run", 1, "the connection ended", incarnation="a", returning=True)


@pytest.fixture
def absences() -> HostAbsences:
    return HostAbsences(5, 1)


@pytest.fixture
def seen() -> list[str]:
    return []


def wait(absences: HostAbsences, seen: list[str]) -> None:
    absences.when_back(1, lambda: seen.append("back"), seen.append)


def test_the_end_of_an_earlier_agent_counts_for_nothing(absences: HostAbsences, seen: list[str]) -> None:
    assert not absences.lose(ENDED, replace(N1, incarnation="b"))
    assert not absences.lose(ENDED, None)
    wait(absences, seen)
    assert seen == ["back"]


def test_requests_wait_for_a_host_that_is_about_to_return(absences: HostAbsences, seen: list[str]) -> None:
    assert absences.lose(ENDED, N1)
    wait(absences, seen)
    assert seen == []
    assert absences.end(1)
    assert seen == ["back"]
    assert not absences.end(1), "its loss was not known"


def test_they_wait_no_longer_than_for_the_first_attempt(absences: HostAbsences, seen: list[str]) -> None:
    absences.lose(ENDED, N1)
    wait(absences, seen)
    absences.give_up(1, "attempt 1 of 3: srun ended")
    assert seen == ["attempt 1 of 3: srun ended"]
    wait(absences, seen)
    assert seen[1:] == ["back"], "the head refuses what is ordered now"
    absences.end(1)
    assert len(seen) == 2


def test_spares_take_the_place_of_lost_hosts(absences: HostAbsences) -> None:
    hosts = range(5)
    assert absences.in_use(hosts) == [0, 1, 2, 3]
    absences.lose(ENDED, N1)
    assert absences.in_use(hosts) == [0, 2, 3, 4]
    assert absences.substitutes([0, 1], [0, 1], hosts) == {1: 4}
    assert HostAbsences(5, 0).in_use([2, 0, 1]) == [0, 1, 2]
