"""Decisions about records and the stages of an allocation, without clock, files and Slurm."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monarch_hpc.allocation.files import Granted
from monarch_hpc.slurm.commands.jobs import QueueRow
from monarch_hpc.slurm.commands.states import SlurmState
from monarch_hpc.slurm.directory import Seen
from monarch_hpc.slurm.job import (
    AskSlurm,
    CancelJob,
    CloseRecord,
    Decision,
    Keep,
    Lifecycle,
    PartRecord,
    Stage,
    decide,
    decide_gone,
)
from monarch_hpc.slurm.record import AllocationRecord, Ended
from tests.unit.slurm.makers import detail, ready, record, row

GONE = "the command that requested it is gone"
REQUESTED = "its release was requested"
GRANTED = Granted(7, ("n1", "n2"), "n[1-2]", 1010.0)
READY = ready(["n1", "n2"])
HALF = ready(["n1"], ["n2"])
INTENT = record()
SUBMITTED = record(job_id=7, submitted_s=1001.0)
WANTED = record(job_id=7, submitted_s=1001.0, release_why=REQUESTED)
CLOSED = record(ended=Ended("NEVER_SUBMITTED", "", "monarch-hpc", 1040.0))


# ---- records after squeue answered


@pytest.mark.parametrize(
    ("found", "listed", "lives", "age_s", "decision"),
    [
        # An intent: its owner is about to write the job's id, or died.
        (INTENT, None, True, 9999, Keep()),
        (INTENT, row(), True, 9999, Keep()),
        (INTENT, row(SlurmState.PENDING), False, 1, CancelJob(7, GONE)),
        (INTENT, row(), False, 1, CancelJob(7, GONE)),
        (INTENT, None, False, 29, Keep()),
        (INTENT, None, None, 899, Keep()),
        (INTENT, row(), None, 899, Keep()),
        (INTENT, row(), None, 901, CancelJob(7, GONE)),
        # A job with an id is adopted, even if its owner is gone.
        (SUBMITTED, row(), None, 9999, Keep()),
        (SUBMITTED, row(SlurmState.UNKNOWN), None, 1, Keep()),
        (SUBMITTED, row(SlurmState.COMPLETING), None, 1, Keep()),
        (SUBMITTED, None, None, 1, AskSlurm(7)),
        (SUBMITTED, row(SlurmState.TIMEOUT), None, 1, AskSlurm(7)),
        # A requested release that Slurm did not answer.
        (WANTED, row(), None, 1, CancelJob(7, REQUESTED)),
        (WANTED, row(SlurmState.COMPLETING), None, 1, Keep()),
        (WANTED, None, None, 1, AskSlurm(7)),
        # A request that slurmctld carried out after all.
        (
            CLOSED,
            row(SlurmState.PENDING),
            None,
            1,
            CancelJob(7, "its job appeared after the allocation had been given up"),
        ),
        (CLOSED, row(SlurmState.COMPLETING), None, 1, Keep()),
        (CLOSED, None, None, 1, Keep()),
    ],
)
def test_what_is_due_for_a_record(
    found: AllocationRecord, listed: QueueRow | None, lives: bool | None, age_s: float, decision: Decision
) -> None:
    assert decide(found, listed, lives, found.created_s + age_s) == decision


@pytest.mark.parametrize(("lives", "age_s"), [(False, 31.0), (None, 901.0)])
def test_an_intent_without_owner_and_job_is_closed_when_no_request_can_be_on_its_way(
    lives: bool | None, age_s: float
) -> None:
    decision = decide(INTENT, None, lives, INTENT.created_s + age_s)
    assert isinstance(decision, CloseRecord)
    assert decision.ended.state == "NEVER_SUBMITTED"


# ---- records whose job squeue did not list


@pytest.mark.parametrize(
    ("found", "state", "exit_status", "ended_state", "source", "words"),
    [
        (SUBMITTED, SlurmState.TIMEOUT, None, "TIMEOUT", "scontrol", "time limit"),
        (SUBMITTED, SlurmState.NODE_FAIL, 0, "NODE_FAIL", "scontrol", "host failed"),
        (SUBMITTED, SlurmState.FAILED, 3, "FAILED", "scontrol", "exit code 3:0"),
        (SUBMITTED, None, 0, "COMPLETED", "ended.json", "exit status 0"),
        (SUBMITTED, None, 3, "FAILED", "ended.json", "exit status 3"),
        (SUBMITTED, None, None, "UNKNOWN", "monarch-hpc", "no longer known to Slurm"),
        (WANTED, SlurmState.CANCELLED, None, "RELEASED", "monarch-hpc", REQUESTED),
        (WANTED, None, None, "RELEASED", "monarch-hpc", REQUESTED),
    ],
)
def test_an_end_is_told_by_the_best_witness(
    found: AllocationRecord,
    state: SlurmState | None,
    exit_status: int | None,
    ended_state: str,
    source: str,
    words: str,
) -> None:
    told = None if state is None else detail(state, exit_code="3:0")
    decision = decide_gone(found, told, exit_status, 2000.0)
    assert isinstance(decision, CloseRecord)
    assert (decision.ended.state, decision.ended.source, decision.ended.at_s) == (ended_state, source, 2000.0)
    assert words in decision.ended.reason


def test_a_job_that_scontrol_knows_as_alive_is_kept() -> None:
    # For example, squeue was asked before the job was submitted.
    assert decide_gone(SUBMITTED, detail(SlurmState.PENDING), None, 2000.0) == Keep()
    assert decide_gone(WANTED, detail(SlurmState.PENDING), None, 2000.0) == CancelJob(7, REQUESTED)
    assert decide_gone(WANTED, detail(SlurmState.COMPLETING), None, 2000.0) == Keep()


def test_an_allocation_goes_on_with_the_jobs_that_have_joined_it() -> None:
    assert decide(SUBMITTED, None, None, 2000.0, goes_on=True) == AskSlurm(7)
    parted = decide_gone(SUBMITTED, detail(SlurmState.TIMEOUT), None, 2000.0, goes_on=True)
    assert isinstance(parted, PartRecord) and parted.ended.state == "TIMEOUT"
    rest = replace(SUBMITTED, parted=parted.ended)
    assert decide(rest, None, None, 3000.0, goes_on=True) == Keep()
    # Later the others end, too: it ended as its first job did, as far as is known.
    assert decide(rest, None, None, 4000.0) == AskSlurm(7)
    assert decide_gone(rest, None, None, 4000.0) == CloseRecord(parted.ended)
    assert decide_gone(rest, None, None, 4000.0, "idle") == CloseRecord(
        Ended("RELEASED", "idle", "released.json", 4000.0)
    )
    assert isinstance(decide_gone(WANTED, detail(SlurmState.TIMEOUT), None, 2000.0, goes_on=True), CloseRecord)


# ---- stages up to ready


def test_an_allocation_comes_from_queued_to_ready() -> None:
    life = Lifecycle(bootstrap_s=30.0)
    stages = [life.stage]
    life = life.see_queue(row(SlurmState.PENDING, reason="Priority"), 1001.0)
    assert (life.reason, life.end) == ("Priority", "")
    for number, seen in enumerate(
        [
            Seen(),
            Seen(granted=GRANTED),
            Seen(granted=GRANTED, reported=frozenset({1})),
            Seen(granted=GRANTED, reported=frozenset({0, 1}), ready=READY),
        ]
    ):
        life = life.see_files(seen, 1010.0 + number)
        stages.append(life.stage)
    assert stages == [Stage.QUEUED, Stage.QUEUED, Stage.GRANTED, Stage.REPORTING, Stage.READY]
    assert (life.granted_s, life.num_reported) == (1011.0, 2)
    assert not life.overdue(9999.0)


def test_running_slurm_tells_the_end_and_no_more_reason() -> None:
    life = Lifecycle(30.0).see_queue(row(SlurmState.PENDING, reason="Priority"), 1001.0).see_queue(row(), 1002.0)
    assert (life.reason, life.end, life.running_s) == ("", "2026-11-21T14:00:00", 1002.0)


def test_a_late_look_moves_nothing_back() -> None:
    life = Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0, 1}), READY), 1010.0)
    assert life.see_files(Seen(), 1020.0) == life
    assert life.see_queue(row(SlurmState.PENDING, reason="Priority"), 1020.0).stage is Stage.READY


def test_the_scripts_last_word_ends_it() -> None:
    life = Lifecycle(30.0).see_files(Seen(GRANTED, exit_status=1), 1010.0)
    assert (life.stage, life.exit_status) == (Stage.ENDED, 1)


def test_slurms_word_ends_it_only_if_it_is_one() -> None:
    life = Lifecycle(30.0)
    assert life.see_detail(detail(SlurmState.PENDING)) == life
    assert life.see_detail(detail(SlurmState.CANCELLED)).stage is Stage.ENDED
    assert life.see_detail(None).stage is Stage.ENDED


def test_a_requeued_job_begins_anew_and_what_its_first_attempt_left_is_not_believed() -> None:
    first = Seen(GRANTED, frozenset({0, 1}), READY, exit_status=143, attempt=1)
    ended = Lifecycle(30.0).see_files(first, 1010.0)
    assert ended.stage is Stage.ENDED
    queued = ended.see_detail(detail(SlurmState.PENDING, "BeginTime", restarts=1))
    assert queued == Lifecycle(30.0, reason="BeginTime", attempt=1, restarts=1)
    assert queued.see_files(first, 1020.0) == queued.see_detail(detail(SlurmState.PENDING, restarts=1)) == queued
    begun = queued.see_files(Seen(attempt=2), 1030.0)
    assert (begun.stage, begun.granted, begun.ready, begun.exit_status) == (Stage.QUEUED, None, None, None)
    again = begun.see_files(Seen(replace(GRANTED, restarts=1), frozenset({0, 1}), READY, attempt=2), 1031.0)
    assert (again.stage, again.granted_s) == (Stage.READY, 1031.0)
    assert again.see_files(first, 1032.0) == again


def test_a_second_start_that_slurm_does_not_count_is_one_too() -> None:
    # As with a slurmctld that lost its newest state.
    first = Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0, 1}), HALF, attempt=1), 1010.0)
    second = first.see_files(Seen(GRANTED, attempt=2), 1020.0)
    assert (second.stage, second.granted_s, second.num_reported, second.ready) == (Stage.GRANTED, 1020.0, 0, None)


def test_an_old_answer_of_squeue_is_no_requeue() -> None:
    life = Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0}), attempt=1), 1010.0)
    assert life.see_detail(detail(SlurmState.RUNNING)) == life


@pytest.mark.parametrize(
    ("life", "overdue_from_s"),
    [
        (Lifecycle(30.0), None),
        (Lifecycle(30.0).see_queue(row(SlurmState.PENDING), 1005.0), None),
        # Slurm reports it as running, but its directory is empty.
        (Lifecycle(30.0).see_queue(row(), 1005.0), 1035.0),
        (Lifecycle(30.0).see_queue(row(), 1005.0).see_files(Seen(GRANTED), 1010.0), 1040.0),
        (Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0})), 1010.0), 1040.0),
        # The head has given up waiting.
        (Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0}), HALF), 1010.0), 1010.0),
        (Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0, 1}), READY), 1010.0), None),
        (Lifecycle(30.0).see_files(Seen(GRANTED, exit_status=0), 1010.0), None),
    ],
)
def test_when_agents_are_overdue(life: Lifecycle, overdue_from_s: float | None) -> None:
    if overdue_from_s is None:
        assert not life.overdue(1e9)
    else:
        assert not life.overdue(overdue_from_s - 0.001) or overdue_from_s == 1010.0
        assert life.overdue(overdue_from_s)


def test_missing_agents_are_not_ready() -> None:
    life = Lifecycle(30.0).see_files(Seen(GRANTED, frozenset({0}), HALF), 1010.0)
    assert life.stage is Stage.REPORTING
    assert replace(life, ready=READY).see_files(Seen(GRANTED), 1011.0).stage is Stage.READY


@pytest.mark.parametrize(("min_hosts", "stage"), [(None, Stage.REPORTING), (3, Stage.REPORTING), (2, Stage.READY)])
def test_fewer_hosts_suffice_if_so_many_were_asked_for(min_hosts: int | None, stage: Stage) -> None:
    seen = Seen(granted=GRANTED, reported=frozenset({0, 1}), ready=ready(["n1", "n2"], ["n3", "n4"]))
    ready_hosts = seen.ready
    assert ready_hosts is not None
    for host in ready_hosts.hosts:
        host.addresses.append("tcp://10.1.0.1:7")
    life = Lifecycle(60.0, min_hosts=min_hosts).see_files(seen, 5.0)
    assert life.stage is stage
    assert life.overdue(6.0) is (stage is not Stage.READY)


def test_without_its_first_host_no_number_suffices() -> None:
    seen = Seen(granted=GRANTED, reported=frozenset({1}), ready=ready([], ["n1", "n2"]))
    assert Lifecycle(60.0, min_hosts=1).see_files(seen, 5.0).stage is not Stage.READY


def test_the_head_is_given_time_to_count_the_hosts() -> None:
    life = Lifecycle(60.0, min_hosts=1).see_files(Seen(granted=GRANTED), 5.0)
    assert [life.overdue(at_s) for at_s in (66.0, 94.0, 96.0)] == [False, False, True]


def test_a_release_by_the_head_is_told_as_such() -> None:
    decision = decide_gone(SUBMITTED, detail(SlurmState.COMPLETED), 0, 2000.0, "no run for 15 min")
    assert decision == CloseRecord(Ended("RELEASED", "no run for 15 min", "released.json", 2000.0))
