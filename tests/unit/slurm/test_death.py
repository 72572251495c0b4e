"""Slurm's words on the end of jobs, hosts and steps, as causes of death."""

from __future__ import annotations

import pytest

from monarch_hpc.core.death import DeathKind
from monarch_hpc.slurm.commands.cluster import NodeState
from monarch_hpc.slurm.commands.jobs import JobDetail, parse_show_job
from monarch_hpc.slurm.commands.states import Phase, SlurmState
from monarch_hpc.slurm.death import death_of_host, death_of_job, death_of_step, has_host, standing_of_host
from monarch_hpc.supervision.relaunch import HostStanding


def job(state: str, reason: str = "None", **fields: str) -> JobDetail:
    words = {"JobId": "7", "JobName": "mh-1", "JobState": state, "Reason": reason, "NodeList": "n[1-3]", **fields}
    return parse_show_job(" ".join(f"{key}={value}" for key, value in words.items()))


@pytest.mark.parametrize(
    ("detail", "kind"),
    [
        (job("RUNNING"), None),
        (job("PENDING", "Priority"), None),
        (job("SUSPENDED"), None),
        (job("TIMEOUT", "TimeLimit"), "time-limit"),
        (job("COMPLETING", "TimeLimit"), "time-limit"),
        (job("DEADLINE"), "time-limit"),
        (job("RUNNING", PreemptTime="2026-01-01T00:00:00"), "preempted"),
        (job("RUNNING", PreemptTime="None"), None),
        (job("PREEMPTED"), "preempted"),
        (job("COMPLETING", "NodeDown"), "node-failure"),
        (job("NODE_FAIL", "NodeDown"), "node-failure"),
        (job("OUT_OF_MEMORY", "OutOfMemory"), "oom"),
        (job("COMPLETING"), "cancelled"),
        (job("CANCELLED"), "cancelled"),
        (job("PENDING", "BeginTime", Restarts="1"), "cancelled"),
        (job("FAILED", "NonZeroExitCode"), "exit"),
        (job("SOMETHING_NEW"), None),
    ],
)
def test_the_end_of_a_job_has_a_kind(detail: JobDetail, kind: str | None) -> None:
    death = death_of_job(detail)
    assert (None if death is None else death.kind.value) == kind
    assert death is None or "job 7" in death.cause


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        (job("COMPLETING"), "cancelled"),
        (job("CANCELLED"), "CANCELLED"),
        (job("COMPLETING", "NodeDown"), "NodeDown"),
        (job("COMPLETING", "TimeLimit"), "at its time limit"),
    ],
)
def test_the_end_of_a_job_is_explained_in_words(detail: JobDetail, words: str) -> None:
    death = death_of_job(detail)
    assert death is not None and death.cause == f"Slurm ended job 7: {words}"


def test_a_job_that_slurm_has_forgotten_has_not_ended_for_all_we_know() -> None:
    assert death_of_job(None) is None


def test_every_state_in_which_a_job_has_ended_is_a_kind_of_death() -> None:
    ended = {state for state in SlurmState if state.phase is Phase.ENDED}
    assert {state for state in SlurmState if state.death is not None} == ended


def test_a_host_that_does_not_work_or_was_taken_away() -> None:
    fine, running = NodeState("n3", "ALLOCATED", ""), job("RUNNING")
    assert death_of_host(running, fine, "n3") is None
    assert death_of_host(None, None, "n3") is None
    for state in ("DOWN", "DOWN*+DRAIN", "ALLOCATED*", "IDLE+NOT_RESPONDING", "FAIL"):
        death = death_of_host(running, NodeState("n3", state, "no power"), "n3")
        assert death is not None and (death.kind, death.host) == (DeathKind.NODE_FAILURE, "n3")
        assert death.cause == f"Slurm says that n3 is {state} (no power)"
    assert death_of_host(running, NodeState("n3", "ALLOCATED+DRAIN", "kernel"), "n3") is None, "it still works"
    taken = death_of_host(job("RUNNING", NodeList="n[1-2]"), fine, "n3")
    assert taken is not None and (taken.kind, taken.cause) == ("cancelled", "Slurm has taken n3 from job 7")
    ended = death_of_host(job("TIMEOUT"), NodeState("n3", "DOWN", ""), "n3")
    assert ended is not None and ended.kind is DeathKind.TIME_LIMIT, "the job's end comes first"


def test_a_job_without_a_list_of_hosts_has_them_all() -> None:
    assert has_host(job("RUNNING", NodeList="(null)"), "n9")
    assert has_host(job("RUNNING", NodeList="n[1-"), "n9"), "a list that cannot be read proves nothing"
    assert not has_host(job("RUNNING"), "n9")


@pytest.mark.parametrize(
    ("output", "kind"),
    [
        ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-23T06:00:00 ***", "cancelled"),
        ("slurmstepd: error: *** STEP 12.0 ON n1 CANCELLED AT 2026-11-23T06:00:00 DUE TO TIME LIMIT ***", "time-limit"),
        ("a\n*** STEP 1.0 ON n1 CANCELLED AT T DUE TO PREEMPTION ***\nsrun: error: n1: task 0: Killed", "preempted"),
        ("*** STEP 1.0 ON n1 CANCELLED AT T DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", "node-failure"),
        ("srun: error: n1: task 0: Killed", None),
        ("", None),
    ],
)
def test_the_end_of_a_step_is_read_from_its_output(output: str, kind: str | None) -> None:
    death = death_of_step(output)
    assert (None if death is None else death.kind.value) == kind


@pytest.mark.parametrize(
    ("detail", "node", "standing"),
    [
        (job("RUNNING"), NodeState("n3", "ALLOCATED", ""), HostStanding.UP),
        (job("RUNNING"), NodeState("n3", "ALLOCATED+DRAIN", "kernel"), HostStanding.UP),
        (job("RUNNING"), NodeState("n3", "ALLOCATED*", ""), HostStanding.NOT_UP),
        (job("RUNNING"), NodeState("n3", "DOWN", ""), HostStanding.NOT_UP),
        (job("RUNNING"), None, HostStanding.UNKNOWN),
        (job("RUNNING", NodeList="n[1-2]"), NodeState("n3", "IDLE", ""), HostStanding.GONE),
        (job("COMPLETING"), NodeState("n3", "ALLOCATED", ""), HostStanding.GONE),
        (None, NodeState("n3", "IDLE", ""), HostStanding.GONE),
    ],
)
def test_a_host_stands_well_only_in_a_job_that_runs(
    detail: JobDetail | None, node: NodeState | None, standing: HostStanding
) -> None:
    assert standing_of_host(detail, node, "n3") is standing
