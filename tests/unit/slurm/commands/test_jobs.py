"""Real output of Slurm 22.05 is parsed correctly."""

from __future__ import annotations

import time

import pytest

from monarch_hpc.core.errors import SlurmParseError
from monarch_hpc.slurm.commands.cluster import (
    Partition,
    Reservation,
    parse_free_nodes,
    parse_leaves,
    parse_partitions,
    parse_show_nodes,
    parse_show_partitions,
    parse_show_reservations,
)
from monarch_hpc.slurm.commands.fields import parse_time
from monarch_hpc.slurm.commands.jobs import (
    SQUEUE_FORMAT,
    WAITING_FORMAT,
    PlannedStart,
    QueueRow,
    WaitingJob,
    parse_job_id,
    parse_left,
    parse_planned_start,
    parse_queue,
    parse_show_job,
    parse_waiting,
)
from monarch_hpc.slurm.commands.states import SlurmState
from tests.unit.slurm.records import FOLDER, answer


def test_the_recorded_squeue_was_asked_as_ours_is() -> None:
    command = (FOLDER / "squeue-queued-and-running.txt").read_text().splitlines()[0].replace("\\", "")
    assert f"--format={SQUEUE_FORMAT} " in command


def test_a_heterogeneous_job_is_one() -> None:
    (row,) = parse_queue(answer("squeue-het"))
    assert (row.job_id, row.state, row.num_hosts, row.hosts) == (1, SlurmState.RUNNING, 3, "n1,n[2-3]")
    found = parse_show_job(answer("scontrol-show-job-het"))
    assert (found.job_id, found.num_hosts, found.hosts, found.batch_host) == (1, 3, "n1,n[2-3]", "n1")
    assert found.components == ("n1", "n[2-3]")
    planned = parse_planned_start(answer("sbatch-test-only-het"))
    assert planned == PlannedStart("2026-11-23T12:36:02", "n[2-4]", "")


def test_squeue_lists_waiting_and_running_jobs() -> None:
    rows = parse_queue(answer("squeue-queued-and-running"))
    assert rows[-1] == QueueRow(
        6, "mh-aaaaaaaa", SlurmState.RUNNING, "RUNNING", 4, "n[1-4]", "2026-11-21T13:32:55", "29:57", ""
    )
    assert {row.name[3]: (row.state, row.num_hosts, row.hosts, row.reason) for row in rows[:-1]} == {
        "b": (SlurmState.PENDING, 4, "", "Resources"),
        "c": (SlurmState.PENDING, 1, "", "JobHeldUser"),
        "d": (SlurmState.PENDING, 1, "", "DependencyNeverSatisfied"),
        "e": (SlurmState.PENDING, 1, "", "BeginTime"),
        "f": (SlurmState.PENDING, 4, "", "Priority"),
    }
    assert {row.name[3]: row.end for row in rows if row.name[3] in "cde"} == {
        "c": "",
        "d": "",
        "e": "2026-11-21T14:32:55",
    }


def test_a_job_that_gives_its_hosts_back_is_still_listed() -> None:
    (row,) = parse_queue(answer("squeue-completing"))
    assert (row.state, row.hosts) == (SlurmState.COMPLETING, "n[1-2]")


def test_no_job_is_no_row() -> None:
    assert parse_queue(answer("squeue-nothing")) == ()


def test_a_reason_keeps_what_it_holds() -> None:
    (row,) = parse_queue("7|mh-x|PENDING|2-4||N/A|NOT_SET|ReqNodeNotAvail,_UnavailableNodes:n[1|3]\n")
    assert (row.num_hosts, row.left, row.reason) == (2, "", "ReqNodeNotAvail, UnavailableNodes:n[1|3]")


@pytest.mark.parametrize("line", ["slurm_load_jobs error: x", "x|mh|PENDING|1||N/A|1|r", "7|mh-x|PENDING"])
def test_what_is_no_row_is_refused(line: str) -> None:
    with pytest.raises(SlurmParseError):
        parse_queue(line)


@pytest.mark.parametrize(
    ("name", "job_id", "state", "reason", "exit_code", "hosts"),
    [
        ("pending", 7, SlurmState.PENDING, "Resources", "0:0", ""),
        ("running", 6, SlurmState.RUNNING, "", "0:0", "n[1-4]"),
        ("completing", 12, SlurmState.COMPLETING, "", "0:0", "n[1-2]"),
        ("cancelled", 12, SlurmState.CANCELLED, "", "0:9", "n[1-2]"),
        ("failed", 13, SlurmState.FAILED, "NonZeroExitCode", "7:0", "n1"),
    ],
)
def test_scontrol_shows_a_job(
    name: str, job_id: int, state: SlurmState, reason: str, exit_code: str, hosts: str
) -> None:
    detail = parse_show_job(answer(f"scontrol-show-job-{name}"))
    assert (detail.job_id, detail.state, detail.reason) == (job_id, state, reason)
    assert (detail.exit_code, detail.hosts, detail.batch_host) == (
        exit_code,
        hosts,
        hosts.replace("[1-4]", "1").replace("[1-2]", "1"),
    )


def test_a_comment_cannot_pass_for_a_state() -> None:
    text = answer("scontrol-show-job-running")
    assert "Comment=JobState=FAILED (it says)" in text
    assert parse_show_job(text).state is SlurmState.RUNNING


@pytest.mark.parametrize("text", ["", "JobId=7 JobName=x", "slurm_load_jobs error: Invalid job id specified"])
def test_what_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(SlurmParseError):
        parse_show_job(text)


def test_scontrol_shows_reservations() -> None:
    assert parse_show_reservations(answer("scontrol-show-reservation")) == (
        Reservation(
            "maint",
            "2027-11-21T13:00:52",
            "2027-11-21T14:00:52",
            "INACTIVE",
            "alice",
            "",
            nodes="n4",
            num_nodes=1,
            flags="FLEX,SPEC_NODES",
        ),
    )
    assert parse_show_reservations("No reservations in the system\n") == ()


def test_free_nodes_are_counted_once_and_those_that_do_not_answer_not_at_all() -> None:
    assert parse_free_nodes("n1|idle\nn1|idle\nn2|reserved\nn3|idle*\nn4|allocated\nn5|mixed\n") == 2
    assert parse_free_nodes("") == 0


def test_a_time_is_this_machines_local_time() -> None:
    assert parse_time("2026-11-22T12:00:00") == time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
    assert parse_time("Unknown") is None


def test_leaf_switches_have_hosts_and_those_above_have_switches() -> None:
    text = (
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[1-2]\nSwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[3-4]\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[0-1]\n"
    )
    assert parse_leaves(text) == {"s0": "n[1-2]", "s1": "n[3-4]"}
    assert parse_leaves("No topology information available\n") == {}


def test_sinfo_lists_each_partition_once() -> None:
    assert parse_partitions(answer("sinfo-partitions") + "debug\n") == ("debug", "short", "low")


@pytest.mark.parametrize(("text", "job_id"), [("14\n", 14), ("14;cluster\n", 14), ("a plugin's words\n14\n", 14)])
def test_sbatch_says_the_jobs_number(text: str, job_id: int) -> None:
    assert parse_job_id(text) == job_id


def test_the_recorded_sbatch_is_read() -> None:
    assert parse_job_id(answer("sbatch-accepted")) == 14


@pytest.mark.parametrize("text", ["", "Submitted batch job", "-3", "14x"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(SlurmParseError):
        parse_job_id(text)


def test_jobs_that_wait_whatever_their_names() -> None:
    assert f"--format={WAITING_FORMAT}" in (FOLDER / "squeue-waiting.txt").read_text().splitlines()[0]
    wanted = WaitingJob(4, "waits", "4", "30:00", "debug", "2026-11-23T00:08:26", "2026-11-23T01:08:24", "Resources")
    assert parse_waiting(answer("squeue-waiting")) == (wanted,)
    (odd,) = parse_waiting("5|a|b||1-2|1-00:00:00|debug|2026-11-23T00:08:27|N/A|Job_held|by me\n".replace("|by", "_by"))
    assert (odd.name, odd.num_hosts, odd.start, odd.reason) == ("a|b|", "1-2", "", "Job held by me")
    assert parse_waiting("") == ()
    with pytest.raises(SlurmParseError):
        parse_waiting("slurm_load_jobs error")


def test_the_planned_start_stands_among_other_words() -> None:
    wanted = PlannedStart("2026-11-23T01:08:24", "n[1-2]", "debug")
    assert parse_planned_start("Welcome to Job 7!\n" + answer("sbatch-test-only")) == wanted
    with pytest.raises(SlurmParseError):
        parse_planned_start("sbatch: nothing to say")


def test_partitions_have_limits() -> None:
    assert parse_show_partitions(answer("scontrol-show-partition")) == (
        Partition("debug", True, "UP", "UNLIMITED", "UNLIMITED", "4"),
        Partition("short", False, "UP", "00:02:00", "UNLIMITED", "2"),
    )


@pytest.mark.parametrize(
    ("text", "left_s"),
    [("0:07", 7), ("29:57", 1797), ("1:00:00", 3600), ("2-03:00:01", 183601), ("UNLIMITED", None), ("", None)],
)
def test_time_left(text: str, left_s: float | None) -> None:
    assert parse_left(text) == left_s


@pytest.mark.parametrize(
    ("state", "usable"),
    [("IDLE", True), ("ALLOCATED", True), ("MIXED+CLOUD", True), ("IDLE+DRAIN", False), ("DOWN*", False),
     ("IDLE*", False), ("MIXED+MAINTENANCE", True), ("ALLOCATED+DRAIN+FAIL", False), ("DOWN+NOT_RESPONDING", False)],
)  # fmt: skip
def test_nodes_that_slurm_lets_jobs_use(state: str, usable: bool) -> None:
    (node,) = parse_show_nodes(f"NodeName=n1 Arch=x86_64 State={state} ThreadsPerCore=1 Reason=bad disk [root@2026]\n")
    assert (node.name, node.usable, node.reason) == ("n1", usable, "bad disk [root@2026]")
