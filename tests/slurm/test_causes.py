"""Causes of death that only Slurm knows: what programs catch, and what `run` exits with."""

from __future__ import annotations

import re

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import LabFaults
from tests.slurm.commands import SLEEPER, Alice, alice, until_printed, write

__all__ = ["alice"]

PROGRAM = """
import time
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorDied, endpoint

monarch_hpc.actor.unhandled_fault_hook = lambda failure: None

class Sleeper(Actor):
    @endpoint
    def ready(self): return monarch_hpc.context().proc.host
    @endpoint
    def sleep(self): time.sleep(600)

sleepers = monarch_hpc.hosts().spawn_procs().spawn("sleeper", Sleeper)
sleepers.ready.call().get()
print("ready", flush=True)
try:
    sleepers.slice(hosts=-1).sleep.call_one().get()
except ActorDied as error:
    print("died", type(error).__name__, error.kind, error.host, error.rank, flush=True)
    print("cause", error.cause, flush=True)
    raise SystemExit(3)
"""


def take(alice: Alice) -> str:
    """Allocate n1 and n2, also if one of them has just not answered Slurm; return the job."""
    done = alice.run("alloc", "dev", "-N", "2", "-w", "n[1-2]", "-t", "30")
    assert done.returncode == 0, done.stderr
    (found,) = alice.status("dev")
    return str(found["job_id"])


def test_a_node_that_slurm_marks_down_is_a_node_failure(alice: Alice) -> None:
    take(alice)
    running = alice.start("run", write(alice, "program.py", PROGRAM))
    careless = alice.start("run", write(alice, "careless.py", SLEEPER + "time.sleep(600)"))
    for program in (running, careless):
        until_printed(program, "ready")
    LabFaults(alice.lab).mark_down("n2", "broken")
    out, err = running.communicate(timeout=240)
    assert "died HostLost node-failure n2 1" in out or "died ProcDied node-failure n2 1" in out, out + err
    assert running.returncode == 3, "the program has handled it"
    _, err = careless.communicate(timeout=240)
    assert careless.returncode == 78 and "unhandled failure" in err, err
    changes = alice.run("status", "--changes", "dev").stdout
    (lost,) = re.findall(r"^[-0-9]+ [:0-9]+ +lost +n2 +node-failure +.*$", changes, re.MULTILINE)
    assert "Slurm says that n2 is DOWN" in lost and "(broken" in lost
    assert len(re.findall(r" joined +n[12] ", changes)) == 2
    assert alice.run("release", "--all").returncode == 0


def test_a_cancelled_step_a_cancelled_job_and_a_time_limit(alice: Alice) -> None:
    program = write(alice, "program.py", PROGRAM)
    job = take(alice)
    running = alice.start("run", program)
    until_printed(running, "ready")
    LabFaults(alice.lab).cancel(f"{job}.0")
    out, err = running.communicate(timeout=240)
    assert running.returncode == 72, out + err
    (output,) = (alice.folder / "shared").glob("*/slurm.out")
    if "CANCELLED" in output.read_text():  # slurmstepd kills srun's tasks first, where it is slow to say so
        assert re.search(r"STEP \S+ ON n1 CANCELLED", err), err
    else:
        assert "exit code 137" in err
    wait_until("its end", alice.jobs, 120.0, accept=lambda jobs: not jobs)

    job = take(alice)
    # A coroutine is cancelled, and would say that its actor was stopped, before its proc has ended.
    waiting = PROGRAM.replace("def sleep(self): time.sleep(600)", "async def sleep(self): await asyncio.sleep(600)")
    running = alice.start("run", write(alice, "waiting.py", "import asyncio" + waiting))
    until_printed(running, "ready")
    alice.slurm("scancel", job)
    out, err = running.communicate(timeout=240)
    assert re.search(r" cancelled n\d 1$", out, re.MULTILINE) and running.returncode == 72, out + err
    wait_until("its end", alice.jobs, 120.0, accept=lambda jobs: not jobs)

    job = take(alice)
    running = alice.start("run", program)
    until_printed(running, "ready")
    LabFaults(alice.lab).reach_time_limit(job)
    out, err = running.communicate(timeout=240)
    assert re.search(r" time-limit n\d 1$", out, re.MULTILINE) and running.returncode == 79, out + err


def test_a_slurmd_that_comes_back_ends_what_was_on_its_host(alice: Alice) -> None:
    job = take(alice)
    running = alice.start("run", write(alice, "program.py", PROGRAM))
    until_printed(running, "ready")
    with LabFaults(alice.lab).without_slurmd("n2"):
        # Its agent and procs go on meanwhile, although Slurm has given the host up.
        words = ("squeue", "-h", "-j", job, "-o", "%N")
        wait_until("Slurm to take n2 out of the job", lambda: alice.slurm(*words).strip(), 240.0, accept="n1".__eq__)
        assert running.poll() is None
    out, err = running.communicate(timeout=240)
    assert re.search(r"died (HostLost|ProcDied) (node-failure|cancelled) n2 1", out), out + err
    assert alice.run("release", "--all").returncode == 0
