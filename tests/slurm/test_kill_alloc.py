"""`alloc` may be killed at any moment: every job has a record, or is cancelled by the next command."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, wait_until_left

__all__ = ["alice"]

NUM_KILLS = int(os.environ.get("KILLS", "30"))
AT_ONCE = 5
# Moments within the time that one allocation takes, from the interpreter's start to the agents' report.
LATEST = 2.5

# sbatch as on a busy cluster. It does not die with its caller: slurmctld may carry out a request later.
SLOW_SBATCH = """#!/bin/bash
trap '' HUP
sleep 0.1
/usr/bin/sbatch "$@"
status=$?
sleep 0.2
exit $status
"""


KILLING_SBATCH = """#!/bin/bash
/usr/bin/sbatch "$@" > /dev/null
kill -KILL $PPID
"""


def with_sbatch(alice: Alice, script: str) -> str:
    """A PATH on which *script* is sbatch."""
    tools = alice.folder / "bin"
    alice.lab.run(
        ["sh", "-c", f"mkdir -p {tools}; cat > {tools}/sbatch; chmod 755 {tools}/sbatch"], stdin=script, check=True
    )
    return f"{tools}:{alice.lab.run(['sh', '-c', 'echo $PATH']).stdout.strip()}"


def kill_one(process: subprocess.Popen[str], after_s: float) -> None:
    """Kill *process* after the given number of seconds, unless it has ended by itself."""
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
    process.communicate(timeout=180)


def unrecorded(alice: Alice) -> set[str]:
    """Return the jobs in the queue that `status` does not list, after it has reconciled the records."""
    shown = {found["job_name"] for found in alice.status() if found["job_id"] is not None}
    return {name for name, state in alice.jobs().items() if name not in shown and state != "COMPLETING"}


@pytest.mark.slow
def test_kills_at_random_moments_leak_no_job(alice: Alice) -> None:
    path = with_sbatch(alice, SLOW_SBATCH)
    begun_s = time.monotonic()
    assert alice.run("alloc", "first", "-N", "1", "-t", "5").returncode == 0
    latest_s = LATEST * (time.monotonic() - begun_s)  # a machine with other work on it takes several times as long
    assert alice.run("release", "--all", timeout_s=120).returncode == 0
    # A fixed seed; the moments still vary with the machine's load, which is the point.
    moments = random.Random(3)
    for first in range(0, NUM_KILLS, AT_ONCE):
        batch = []
        for number in range(first, first + AT_ONCE):
            slow = {"PATH": path} if number % 2 else {}
            flags = ("--bg",) if number % 3 == 0 else ()
            # The first four get hosts, the others are pending: both kinds are killed.
            batch.append(alice.start("alloc", f"k{number}", "-N", "1", "-t", "5", *flags, env=slow))
        if not first:  # however fast this machine is: one is killed before it has a job, and one has its own
            kill_one(batch[-1], 0.0)
            assert batch[0].wait(90) == 0, "it does not wait for hosts"
        for process in batch:
            with process:
                kill_one(process, moments.uniform(0.0, latest_s / AT_ONCE))

    records = alice.status()
    with_job = [record for record in records if record["job_id"] is not None]
    # There were kills both before and after a job existed.
    assert 0 < len(with_job) < NUM_KILLS, [(record["name"], record["state"]) for record in records]
    leaked = wait_until("jobs without a record to go", lambda: unrecorded(alice), 40, accept=lambda jobs: not jobs)
    assert leaked == set()

    done = alice.run("release", "--all", timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert alice.jobs() == {}
    assert alice.status() == []
    wait_until_left(alice, *alice.lab.hosts)


def test_a_job_whose_alloc_died_before_it_heard_the_number_is_cancelled_by_the_next_command(alice: Alice) -> None:
    path = with_sbatch(alice, KILLING_SBATCH)
    assert alice.run("alloc", "killed", "-N", "1", "-t", "5", env={"PATH": path}).returncode == -signal.SIGKILL
    assert len(alice.jobs()) == 1

    def reasons() -> list[str]:
        alice.status()
        return [json.loads(path.read_text())["reason"] for path in alice.state.glob("*/ended.json")]

    wait_until("its end", reasons, accept=lambda found: found == ["the command that requested it is gone"])
    assert alice.jobs() == {}
