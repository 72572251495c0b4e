from __future__ import annotations

import pytest

from monarch_hpc.supervision import Lease, Liveness, Standstill


@pytest.fixture
def standstill() -> Standstill:
    return Standstill(Lease(suspect_s=5.0, dead_s=15.0), step_s=1.0, now_s=100.0)


def watch(standstill: Standstill, states: str, start_s: float = 101.0) -> list[tuple[Liveness, float]]:
    """Feed one state per second; return the results."""
    return [standstill.see(state, start_s + index) for index, state in enumerate(states)]


def test_a_stopped_process_is_suspect_and_then_dead(standstill: Standstill) -> None:
    seen = watch(standstill, "S" + "T" * 15)
    assert [life for life, _ in seen] == [Liveness.ALIVE] * 5 + [Liveness.SUSPECT] * 10 + [Liveness.DEAD]
    assert seen[5:7] == [(Liveness.SUSPECT, 5.0), (Liveness.SUSPECT, 6.0)]
    assert seen[-1] == (Liveness.DEAD, 15.0)


def test_one_that_goes_on_in_time_is_alive_and_its_time_starts_again(standstill: Standstill) -> None:
    seen = watch(standstill, "S" + "T" * 14 + "R" + "T" * 5)
    assert seen[-7:-5] == [(Liveness.SUSPECT, 14.0), (Liveness.ALIVE, 15.0)]
    assert seen[-1] == (Liveness.SUSPECT, 5.0)


@pytest.mark.parametrize("state", list("RSDtZIX"))
def test_no_other_state_is_a_standstill(standstill: Standstill, state: str) -> None:
    assert {life for life, _ in watch(standstill, state * 60)} == {Liveness.ALIVE}


def test_nobody_returns_from_the_dead(standstill: Standstill) -> None:
    assert watch(standstill, "T" * 16 + "RRR")[-1][0] is Liveness.DEAD


def test_who_was_away_himself_condemns_nobody(standstill: Standstill) -> None:
    watch(standstill, "SSSS")
    # The whole job was suspended for an hour, and the watcher is resumed first.
    seen = watch(standstill, "TTTRR", start_s=3700.0)
    assert {life for life, _ in seen} == {Liveness.ALIVE}
    seen = watch(standstill, "T" * 15, start_s=3705.0)
    assert seen[-1] == (Liveness.DEAD, 15.0)


def test_who_always_comes_late_finds_the_dead_later(standstill: Standstill) -> None:
    lives = [standstill.see("T", 100.0 + 4.0 * look)[0] for look in range(1, 16)]
    assert lives == [Liveness.ALIVE] * 4 + [Liveness.SUSPECT] * 10 + [Liveness.DEAD]
