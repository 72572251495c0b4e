"""The end of a job: programs get notice of it, on login and in the job, and actors live as long as hooks need them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, announce_end, until_printed, wait_until_left, write

__all__ = ["alice"]

PROGRAM = """
import sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Trainer(Actor):
    @endpoint
    def save(self):
        time.sleep(0.5)
        return monarch_hpc.context().proc.host

trainers = monarch_hpc.hosts().spawn_procs().spawn("trainer", Trainer)
trainers.save.call().get()

@monarch_hpc.on_deadline
def save(seconds_left, cause):
    hosts = sorted(trainers.save.call().get().values())
    print("saved", cause, round(seconds_left), *hosts, flush=True)

print("minutes left", round(monarch_hpc.seconds_left() / 60), flush=True)
time.sleep(600)
"""


def seconds_left(printed: str, cause: str) -> int:
    """The time that a hook had which was called on this cause, and reached its actors; less on a busy machine."""
    (left_s,) = re.findall(rf"^saved {cause} (\d+) n\d n\d$", printed, re.MULTILINE)
    return int(left_s)


def test_a_program_on_login_gets_notice_of_the_end_and_of_sigterm(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2", "-t", "30").returncode == 0
    (found,) = alice.status("dev")
    running = alice.start("run", "-a", "dev", write(alice, "program.py", PROGRAM))
    assert 20 < int(until_printed(running, "minutes left").split()[-1]) <= 30
    (directory,) = (path for path in alice.shared.iterdir() if path.is_dir())
    # Slurm's own signal changes nothing where the end is known: the head asks again.
    alice.slurm("scancel", "--batch", "--signal=USR2", str(found["job_id"]))
    wait_until("the warning", (directory / "attempts" / "1" / "warned.json").exists, 120.0)
    announce_end(alice, directory, 100)
    assert 50 < seconds_left(until_printed(running, "saved"), "time limit") <= 100
    alice.slurm("scancel", str(found["job_id"]))
    # The lab's KillWait, less procs.stop_s and a second.
    assert seconds_left(until_printed(running, "saved"), "SIGTERM") <= 24
    out, err = running.communicate(timeout=180)
    assert running.returncode == 72 and out == "", err
    wait_until_left(alice)


def test_so_does_one_in_its_own_job(alice: Alice) -> None:
    output = write(alice, "output", "")
    environment = f"ALL,MONARCH_HPC_PATHS__SHARED={alice.shared}"
    command = f"exec {sys.executable} {write(alice, 'program.py', PROGRAM)}"
    flags = ("-N2", "-t5", "-J", "own", "-o", output, "--export", environment, "--wrap", command)
    alice.slurm("sbatch", *flags)
    wait_until("the program", Path(output).read_text, 120.0, accept=lambda printed: "minutes left" in printed)
    alice.slurm("scancel", "--name=own")
    wait_until("its end", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    assert seconds_left(Path(output).read_text(), "SIGTERM") <= 24
    wait_until_left(alice)
