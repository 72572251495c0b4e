"""Agents are started again only where Slurm says so, a few times, ever later, and within a ration."""

from __future__ import annotations

from monarch_hpc.supervision.relaunch import AskStanding, GiveUp, HostStanding, LaunchAgent, LaunchLimit, Relaunches

UP, NOT_UP, GONE, UNKNOWN = HostStanding.UP, HostStanding.NOT_UP, HostStanding.GONE, HostStanding.UNKNOWN


def relaunches(tries: int = 3, max_pending: int = 2, per_hour: int = 6) -> Relaunches:
    return Relaunches(tries, 2.0, 60.0, LaunchLimit(max_pending, per_hour))


def delay(step: object) -> float:
    assert isinstance(step, AskStanding), step
    return step.delay_s


def test_three_attempts_ever_later_then_no_more() -> None:
    machine = relaunches()
    assert machine.lose(1) == AskStanding(0.0)
    for number, pause in ((1, 2.0), (2, 4.0)):
        assert machine.answer(1, UP, 0.0) == LaunchAgent(number, number)
        assert machine.fail(1, number, "no route") == AskStanding(pause, f"attempt {number} of 3: no route")
        assert machine.waiting == {1}
    assert machine.answer(1, UP, 0.0) == LaunchAgent(3, 3)
    assert machine.fail(1, 3, "no route") == GiveUp("attempt 3 of 3: no route")
    assert machine.waiting == frozenset()
    assert machine.answer(1, UP, 0.0) is None


def test_nothing_starts_while_slurm_is_silent_or_says_that_the_host_does_not_work() -> None:
    machine = relaunches()
    machine.lose(1)
    pauses = [delay(machine.answer(1, standing, 0.0)) for standing in (UNKNOWN, NOT_UP, UNKNOWN, UNKNOWN, UNKNOWN)]
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert [delay(machine.answer(1, UNKNOWN, 0.0)) for _ in range(50)] == [60.0] * 50
    assert machine.answer(1, UP, 0.0) == LaunchAgent(1, 1), "silence uses up no attempt"
    assert machine.answer(1, UP, 0.0) is None, "it is under way"


def test_a_step_that_slurm_refuses_for_now_uses_up_neither_an_attempt_nor_the_ration() -> None:
    machine = relaunches(tries=1, per_hour=1)
    machine.lose(1)
    pauses = []
    for ticket in range(1, 8):
        assert machine.answer(1, UP, 0.0) == LaunchAgent(1, ticket)
        pauses.append(delay(machine.fail(1, ticket, "hosts are not known yet", refused=True)))
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert machine.answer(1, UP, 0.0) == LaunchAgent(1, 8)
    assert machine.fail(1, 8, "no route") == GiveUp("attempt 1 of 1: no route")


def test_a_host_that_has_left_the_job_is_given_up_at_once() -> None:
    machine = relaunches()
    machine.lose(1)
    assert machine.answer(1, GONE, 0.0) == GiveUp("it is not in the job any more, or the job ends")
    assert machine.answer(1, UP, 0.0) is None


def test_a_late_end_of_an_earlier_attempt_is_not_the_end_of_the_present_one() -> None:
    machine = relaunches()
    machine.lose(1)
    assert machine.answer(1, UP, 0.0) == LaunchAgent(1, 1)
    assert delay(machine.fail(1, 1, "late")) == 2.0
    assert machine.answer(1, UP, 0.0) == LaunchAgent(2, 2)
    assert machine.fail(1, 1, "late") is None
    machine.end(1)
    assert machine.fail(1, 2, "it has joined, and its step has ended since") is None
    machine.lose(1)
    assert machine.answer(1, UP, 0.0) == LaunchAgent(1, 3)
    assert machine.fail(1, 1, "an attempt of an earlier loss") is None


def test_the_ration_holds_for_all_hosts_together() -> None:
    machine = relaunches(max_pending=2, per_hour=3)
    for rank in range(1, 6):
        machine.lose(rank)
    assert [machine.answer(rank, UP, 0.0) for rank in (1, 2)] == [LaunchAgent(1, 1), LaunchAgent(1, 2)]
    waits = machine.answer(3, UP, 0.0)
    assert isinstance(waits, AskStanding) and "heal.max_pending" in waits.why
    machine.end(1)
    assert machine.answer(3, UP, 100.0) == LaunchAgent(1, 3)
    machine.end(2)
    waits = machine.answer(4, UP, 100.0)
    assert isinstance(waits, AskStanding) and "heal.per_hour" in waits.why
    assert isinstance(machine.answer(4, UP, 3599.0), AskStanding)
    assert machine.answer(4, UP, 3600.0) == LaunchAgent(1, 4)
    assert isinstance(machine.answer(5, UP, 3601.0), AskStanding), "two are under way"


def test_it_can_be_switched_off() -> None:
    assert isinstance(relaunches(tries=0).lose(1), GiveUp)
