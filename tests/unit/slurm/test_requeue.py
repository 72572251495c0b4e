"""Jobs that start again: how often they may, and where the site forbids it. `tests/slurm/test_batch.py` does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from monarch_hpc.config import Config
from monarch_hpc.config.load import load_config
from monarch_hpc.core.errors import AllocationError, ConfigError
from monarch_hpc.slurm.commands.argv import own_job_id
from monarch_hpc.slurm.requeue import num_starts_before, requeue_job

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "debug", "PATH": "/nowhere"}


def config(**flags: object) -> Config:
    return load_config({"HOME": "/home/alice"}, Path("/"), "login1", None, flags).config


def test_starts_are_counted_over_requeues_and_next_jobs() -> None:
    assert num_starts_before({}) == 0
    assert num_starts_before({"SLURM_RESTART_COUNT": "2", "MONARCH_HPC_CHAINED": "3"}) == 5


def test_a_task_of_an_array_is_named_apart_from_the_others() -> None:
    # The last task has the number of the array: 'scontrol requeue 7' would requeue all of them.
    assert own_job_id(JOB) == "7"
    assert own_job_id({**JOB, "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}) == "7_3"


def test_a_program_outside_of_a_job_is_told_how_to_be_in_one() -> None:
    with pytest.raises(AllocationError, match="monarch-hpc sbatch SCRIPT"):
        requeue_job(config(), {})


def test_a_loop_ends_after_as_many_starts_as_it_may_have() -> None:
    with pytest.raises(AllocationError, match="has started again 2 times, as often as --max-requeues allows"):
        requeue_job(config(), {**JOB, "SLURM_RESTART_COUNT": "2", "MONARCH_HPC_REQUEUES": "2"})


def test_where_the_site_forbids_it_no_job_starts_again() -> None:
    with pytest.raises(ConfigError, match="may not start itself again in 'debug'"):
        requeue_job(config(**{"limits.no_chaining": ["debug"]}), JOB)


def test_the_sigterm_that_ends_a_job_does_not_hide_that_it_was_asked_for(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nkill -TERM $$\n")  # as Slurm does to all processes of a job
    scontrol.chmod(0o755)
    assert requeue_job(config(), {**JOB, "PATH": str(tmp_path)}) == 7
