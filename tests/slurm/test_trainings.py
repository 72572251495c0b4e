"""Whole trainings on a real allocation: the examples with torch, repeated, and in a batch script written by hand.

Two hosts are enough here, since README's session trains on four: torch takes each host several seconds of a processor.
TRAINING_HOSTS=4 TRAININGS=3 is a longer search.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from monarch_hpc.testing import wait_until
from tests.guards.tree import ROOT
from tests.slurm.commands import (
    SLEEPER,
    Alice,
    Standing,
    alice,
    kill_all_on_login,
    procs_left,
    steps,
    until_printed,
    wait_for_steps,
    wait_until_left,
    write,
)

__all__ = ["alice"]

NUM_HOSTS = int(os.environ.get("TRAINING_HOSTS", "2"))
NUM_TRAININGS = int(os.environ.get("TRAININGS", "2"))
DIGITS = str(ROOT / "examples" / "digits_ddp.py")
SPMD = str(ROOT / "examples" / "spmd_digits.py")


@pytest.fixture
def held(standing: Standing) -> Iterator[Alice]:
    """Alice with a ready allocation `dev`, which other tests use, too."""
    yield standing.take(("-N", str(NUM_HOSTS), "-w", f"n[1-{NUM_HOSTS}]", "-t", "30", "--gpus-per-node", "4"), {})
    standing.check()


@pytest.mark.slow  # imports torch on each host, for each training
def test_the_digits_again_with_everything_on_the_login_host_killed_between(held: Alice) -> None:
    before = steps(held)
    assert len(before) == 1 and before[0].endswith("agents")
    for attempt in range(NUM_TRAININGS):
        done = held.run("run", "-a", "dev", DIGITS, timeout_s=240)
        assert done.returncode == 0, done.stderr
        (accuracy,) = re.findall(r"test accuracy ([\d.]+)%", done.stdout)
        assert float(accuracy) >= 95.0
        assert f"{{hosts: {NUM_HOSTS}, gpus: 2}}" in done.stdout and done.stdout.count("images/s") == 16
        wait_for_steps(held, before)
        if attempt == 0:  # in the middle of a run
            running = held.start("run", "-a", "dev", write(held, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
            until_printed(running, "ready")
            kill_all_on_login(held)
            running.communicate(timeout=180)
            wait_until("no proc of the killed run", lambda: procs_left(held), 120.0, accept=lambda left: not left)


@pytest.mark.slow
def test_a_script_of_torchrun_on_all_hosts(held: Alice) -> None:
    done = held.run("run", "-a", "dev", SPMD, timeout_s=240)
    assert done.returncode == 0, done.stderr
    assert f"statuses {[0] * NUM_HOSTS}" in done.stdout
    assert len(re.findall(r"^\[r00 n1\] epoch", done.stdout, re.MULTILINE)) == 12


@pytest.mark.slow
def test_a_batch_script_written_by_hand_trains_too(alice: Alice) -> None:
    output = alice.folder / "digits.out"
    write(alice, "digits.out", "")
    script = str(ROOT / "examples" / "digits.sbatch")
    environment = f"ALL,MONARCH_HPC_PATHS__SHARED={alice.shared}"
    options = (f"--nodes={NUM_HOSTS}", f"--output={output}", f"--export={environment}", f"--chdir={ROOT}")
    status = alice.batch(*options, script, folder=ROOT, timeout_s=300)
    assert status == 0, output.read_text()
    text = output.read_text()
    assert f"{{hosts: {NUM_HOSTS}, gpus: 2}}" in text
    (accuracy,) = re.findall(r"test accuracy ([\d.]+)%", text)
    assert float(accuracy) >= 95.0
    wait_until_left(alice)
