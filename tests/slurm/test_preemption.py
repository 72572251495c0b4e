"""Preemption: a job of another partition takes the hosts, and programs have time to save."""

from __future__ import annotations

import re

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, until_printed, wait_until_left, write
from tests.slurm.test_deadlines import PROGRAM

__all__ = ["alice"]


def test_a_preempted_program_saves_and_says_so(alice: Alice) -> None:
    taken = alice.run("alloc", "dev", "-N", "2", "-t", "30", "-p", "scavenge")
    assert taken.returncode == 0, taken.stderr
    running = alice.start("run", "-a", "dev", write(alice, "program.py", PROGRAM))
    until_printed(running, "minutes left")
    alice.slurm("sbatch", "-Q", "-N4", "--exclusive", "-J", "filler", "-o", "/dev/null", "--wrap", "exec sleep 600")
    saved = until_printed(running, "saved")
    assert re.search(r"^saved SIGTERM \d+ n\d n\d$", saved, re.MULTILINE), saved
    _, err = running.communicate(timeout=240)
    assert running.returncode == 79, err
    jobs = wait_until("the other job", alice.jobs, 120.0, accept=lambda jobs: jobs.get("filler") == "RUNNING")
    assert set(jobs) == {"filler"}
    # Slurm 22.05 still cleans up after the job, and gives a reason; later versions say its state.
    assert "preempted" in err.lower(), err
    alice.free()
    wait_until("the hosts to be free", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    wait_until_left(alice)
