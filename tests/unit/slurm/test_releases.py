"""Texts of every release, 20.11 to 26.05, are read alike; `golden/data/slurm/SOURCES.md` has their origins."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.slurm.commands.jobs import (
    SACCT_FORMAT,
    SQUEUE_FORMAT,
    JobDetail,
    parse_accounted,
    parse_job_id,
    parse_queue,
    parse_show_job,
)
from monarch_hpc.slurm.commands.messages import advice_for, is_busy, reason_in_words
from monarch_hpc.slurm.commands.states import SlurmState
from monarch_hpc.slurm.job import how_it_ended
from tests.unit.slurm.makers import record

FOLDER = Path(__file__).parents[2] / "golden" / "data" / "slurm"
RELEASES = ("20.11", "21.08", "23.02", "23.11", "24.05", "24.11", "25.05", "25.11", "26.05")


def read(release: str, name: str) -> tuple[str, str]:
    command, _, text = (FOLDER / release / f"{name}.txt").read_text().partition("\n")
    return command.replace("\\", ""), text


def test_each_release_since_the_oldest_has_its_texts() -> None:
    assert sorted(path.name for path in FOLDER.iterdir() if path.is_dir()) == sorted((*RELEASES, "22.05"))


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_says_the_same_of_a_job(release: str) -> None:
    assert parse_show_job(read(release, "scontrol-show-job-running")[1]) == JobDetail(
        job_id=8,
        name="mh-aaaaaaaa",
        state=SlurmState.RUNNING,
        slurm_state="RUNNING",
        reason="",
        exit_code="0:0",
        hosts="c[1-2]",
        batch_host="c1",
        end="2026-10-30T06:48:05",
        restarts=1,
        requeues=True,
        limit="01:30:00",
        start="2026-10-30T05:18:05",
        num_hosts=2,
        reservation="class",
        components=("c[1-2]",),
    )


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_lists_jobs_and_a_reason_that_is_shown_even_if_unknown(release: str) -> None:
    command, text = read(release, "squeue-queued-and-running")
    assert f"--format={SQUEUE_FORMAT} " in command
    waiting, running = parse_queue(text)
    assert (running.job_id, running.hosts, running.left) == (8, "c[1-2]", "1:29:40")
    assert (waiting.state, waiting.num_hosts) == (SlurmState.PENDING, 2)
    assert reason_in_words(waiting.reason).startswith(waiting.reason) and waiting.reason


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_accepts_refuses_and_is_busy_in_known_words(release: str) -> None:
    assert parse_job_id(read(release, "sbatch-accepted")[1]) == 8
    refused, busy = read(release, "refused-account")[1], read(release, "busy-sbatch")[1]
    assert "-A" in advice_for(refused, {"account": "x"}) and not is_busy(refused)
    assert is_busy(busy)


@pytest.mark.parametrize("release", RELEASES)
def test_the_accounting_database_is_a_witness_of_the_end(release: str) -> None:
    command, text = read(release, "sacct-ended")
    assert f"--format={SACCT_FORMAT}" in command
    assert parse_accounted(text, "mh-other") is None
    detail = parse_accounted(text, "mh-aaaaaaaa")
    assert detail is not None and (detail.state, detail.hosts) == (SlurmState.CANCELLED, "c[1-2]")
    ended = how_it_ended(record(job_id=8), detail, None, 0.0)
    assert (ended.state, ended.source) == ("CANCELLED by 1000", "sacct")


def test_an_accounting_database_that_is_not_there_says_nothing() -> None:
    assert parse_accounted("", "mh-aaaaaaaa") is None
    assert parse_accounted("Slurm accounting storage is disabled\n", "mh-aaaaaaaa") is None
