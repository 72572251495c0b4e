"""Causes of death: told at once if known, when the report comes, or as unknown after a while."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import HostLost, ProcDied, SupervisionError
from monarch_hpc.mesh.program.procs.deaths import Deaths, ProgramCauses
from monarch_hpc.testing import ManualClock


class Callers:
    """Callers that lost procs, and the answers that they got."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.deaths = Deaths(self.clock.call_later, 10.0)
        self.told: list[str] = []
        self.kinds: list[type[SupervisionError]] = []
        self.given_up: list[str] = []

    def ask(self, incarnation: int, where: str) -> None:
        def tell(error: SupervisionError) -> None:
            self.told.append(str(error))
            self.kinds.append(type(error))

        self.deaths.explain(incarnation, where, tell, lambda where, _tell: self.given_up.append(where))


def died(cause: str) -> Death:
    return Death(DeathKind.SIGNAL, cause)


@pytest.fixture
def callers() -> Callers:
    return Callers()


def test_a_known_cause_is_told_at_once(callers: Callers) -> None:
    callers.deaths.record(7, died("exit code 3"))
    callers.ask(7, "a[0]")
    assert (callers.told, callers.clock.timers) == (["a[0] died: exit code 3"], [])


def test_all_who_asked_are_told_when_the_cause_is_known_and_only_once(callers: Callers) -> None:
    callers.ask(7, "a[0]")
    callers.ask(7, "b[0]")
    callers.ask(8, "c[1]")
    assert callers.told == []
    callers.deaths.record(7, died("signal 9"))
    assert callers.told == ["a[0] died: signal 9", "b[0] died: signal 9"]
    callers.clock.advance(60.0)
    assert (len(callers.told), callers.given_up) == (2, ["c[1]"])


def test_who_waits_too_long_is_given_up_and_a_later_report_is_for_later_callers(callers: Callers) -> None:
    callers.ask(7, "a[0]")
    callers.clock.advance(60.0)
    assert (callers.told, callers.given_up) == ([], ["a[0]"])
    callers.deaths.record(7, died("signal 9"))
    assert callers.told == []
    callers.ask(7, "b[0]")
    assert callers.told == ["b[0] died: signal 9"]


def test_the_loss_of_a_host_has_a_class(callers: Callers) -> None:
    callers.deaths.record(7, died("signal 9"))
    callers.deaths.record(8, replace(died("host n1 is lost"), host_lost=True))
    callers.ask(7, "a[0]")
    callers.ask(8, "b[0]")
    assert callers.kinds == [ProcDied, HostLost]


def test_the_first_cause_counts(callers: Callers) -> None:
    callers.deaths.record(7, died("signal 9"))
    callers.deaths.record(7, died("the host is lost"))
    callers.ask(7, "a[0]")
    assert callers.told == ["a[0] died: signal 9"]


def test_a_requested_end_was_expected(callers: Callers) -> None:
    callers.deaths.record(7, replace(died("it was stopped"), expected=True))
    callers.deaths.record(8, died("signal 9"))
    assert [callers.deaths.was_expected(incarnation) for incarnation in (7, 8, 9)] == [True, False, False]


def test_one_that_was_asked_to_end_has_not_failed_however_long_it_takes(callers: Callers) -> None:
    ending: list[bool] = []
    causes = ProgramCauses(callers.deaths, lambda: bool(ending), lambda incarnation: incarnation == 7)
    callers.deaths.record(8, replace(died("it was stopped"), expected=True))
    lost = "lost proc on n1: it left: the proc was stopped"
    assert [causes.was_stopped(incarnation, lost) for incarnation in (7, 8, 9)] == [True, True, False]
    ending.append(True)
    assert causes.was_stopped(9, lost)


def test_one_that_a_restart_policy_mends_has_not_failed_for_those_who_ask(callers: Callers) -> None:
    causes = ProgramCauses(callers.deaths, lambda: False, lambda _incarnation: False)
    callers.deaths.record(7, died("signal 9"), handled=True)
    callers.deaths.record(8, died("signal 9"))
    lost = "lost proc on n1: it left"
    assert [causes.was_stopped(incarnation, lost) for incarnation in (7, 8)] == [True, False]
    callers.ask(7, "a[0]")
    assert callers.told == ["a[0] died: signal 9"]


def test_a_revised_death_is_the_same_with_another_cause(callers: Callers) -> None:
    callers.deaths.record(7, replace(died("signal 9"), host="n1", rank=2))
    revised = callers.deaths.revise(7, "signal 9; it did not start again")
    assert revised == Death(DeathKind.SIGNAL, "signal 9; it did not start again", "n1", 2)
    callers.ask(7, "a[0]")
    assert callers.told == ["a[0] died: signal 9; it did not start again"]
    assert callers.deaths.revise(8, "it did not start").kind is DeathKind.UNKNOWN


def test_the_deaths_that_are_remembered_are_bounded(callers: Callers) -> None:
    for incarnation in range(5000):
        callers.deaths.record(incarnation, died("signal 9"))
    callers.ask(0, "a[0]")
    callers.ask(4999, "b[0]")
    assert callers.told == ["b[0] died: signal 9"]
