"""The process that runs a function as a batch job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from submitit.slurm.slurm import SlurmJobEnvironment

from monarch_hpc.submitit.batch_task import shield_requeue

shield_requeue()
SlurmJobEnvironment()._requeue(2)
"""


@pytest.mark.slow
def test_a_request_to_requeue_outlives_the_signal_that_ends_its_job(tmp_path: Path) -> None:
    """Slurm sends SIGTERM to all processes of a job as soon as it has the request."""
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f"#!/bin/sh\nkill -TERM $$\necho \"$@\" > '{tmp_path}/asked'\n")
    scontrol.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "17", "SLURM_PROCID": "0"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "asked").read_text() == "requeue 17\n"
