"""Node-hours, and the warning before a site cancels an idle reservation."""

from __future__ import annotations

import time

from monarch_hpc.slurm.commands.cluster import Reservation
from monarch_hpc.slurm.commands.jobs import parse_show_job
from monarch_hpc.slurm.usage import JobUsage, idle_warning, measure_job, measure_reservation
from tests.unit.slurm.records import answer

NOON_S = time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1))
DAY = Reservation(
    "day", "2026-11-22T10:00:00", "2026-11-22T18:00:00", "ACTIVE", "alice", "", nodes="n[1-8]", num_nodes=8
)


def test_a_running_job_has_node_hours_so_far_and_at_its_end() -> None:
    detail = parse_show_job(answer("scontrol-show-job-running"))
    start_s = time.mktime((2026, 11, 21, 13, 2, 55, 0, 0, -1))
    assert measure_job(detail, start_s + 900) == JobUsage(4, 900.0, 900.0, 1.0, 2.0, "")
    after = measure_job(detail, start_s + 9000)
    assert (after.used_s, after.left_s, after.node_hours) == (1800.0, 0.0, 2.0)


def test_a_waiting_job_has_taken_nothing_whatever_slurm_estimates() -> None:
    detail = parse_show_job(answer("scontrol-show-job-pending"))
    assert measure_job(detail, NOON_S) == JobUsage(4, 0.0, None, 0.0, None, "")


def test_a_reservation_is_charged_whole_and_may_have_been_idle_since_it_was_last_seen_busy() -> None:
    found = measure_reservation(DAY, 6, None, NOON_S)
    assert (found.num_used, found.left_s, found.node_hours, found.idle_s) == (2, 6 * 3600, 16.0, 2 * 3600)
    assert measure_reservation(DAY, 5, NOON_S - 60, NOON_S).idle_s == 60
    assert measure_reservation(DAY, 4, None, NOON_S).idle_s == 0
    assert measure_reservation(DAY, None, None, NOON_S).idle_s == 0
    assert measure_reservation(DAY, 8, None, NOON_S - 3 * 3600).idle_s == 0  # it has not begun


def test_the_warning_comes_at_half_of_the_limit() -> None:
    early = measure_reservation(DAY, 6, NOON_S - 899, NOON_S)
    due = measure_reservation(DAY, 6, NOON_S - 900, NOON_S)
    assert idle_warning(early, 30) == idle_warning(due, None) == ""
    assert idle_warning(due, 30) == (
        "2 of 8 hosts of reservation day are in use, and up to 15 min long it was less than half: after 30 min the "
        "site cancels it, and charges all of it"
    )
