"""`SlurmJob` on a real Slurm: found again by the next program, never cancelled unasked, given back when asked."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.slurm.commands import Alice, alice, write
from tests.system.support.programs import PATIENCE_S

__all__ = ["alice"]

PROGRAM = """
import os, sys
from monarch_hpc.actor import Actor, context, endpoint
from monarch_hpc.job import SlurmJob, job_load

os.chdir(os.path.dirname(os.path.abspath(__file__)))

class Where(Actor):
    @endpoint
    def where(self): return context().proc.host, context().proc.slurm_job_id != ""

job = SlurmJob({"trainers": 1, "loaders": 2}, time_limit="00:20:00", exclusive=False, mem=MEM, slurm_args=["--nice=1"])
state = job.state()
print(state.trainers.sizes, state.loaders.sizes)
found = state.loaders.spawn_procs().spawn("where", Where).where.call().get()
print(len(set(found.values())), all(inside for _, inside in found.values()))
print("again", job.state().trainers.entries == state.trainers.entries)
print("id", job.apply_id)
"""


def run(alice: Alice, program: str, code: int = 0) -> str:
    path = write(alice, "program.py", program)
    done = alice.lab.run([sys.executable, path], env=alice.environment({}), timeout_s=2 * PATIENCE_S)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_slurm_job_is_found_again_never_cancelled_unasked_and_given_back(alice: Alice) -> None:
    first = run(alice, PROGRAM.replace("MEM", "'100M'"))
    assert "{'hosts': 1} {'hosts': 2}" in first and "2 True" in first and "again True" in first
    jobs = alice.jobs()
    assert list(jobs.values()) == ["RUNNING"]
    name = str(alice.status()[0]["name"])
    assert name.startswith("monarch_job-")
    second = run(alice, PROGRAM.replace("MEM", "'100M'"))
    assert second.splitlines()[-1] == first.splitlines()[-1] and alice.jobs() == jobs
    changed = run(alice, PROGRAM.replace("MEM", "'200M'"), code=1)
    assert "lives and differs: mem is '100M', wanted is '200M'" in changed and alice.jobs() == jobs
    saved = Path(write(alice, "kill.py", "")).with_name(".monarch") / "job_state.pkl"
    kill = f"from monarch_hpc.job import job_load\njob_load({str(saved)!r}).kill()\n"
    run(alice, kill)
    assert alice.jobs() == {}
    run(alice, kill)  # nothing is left to release


UNDER_RUN = """
import sys
from monarch_hpc.job import SlurmJob
try:
    state = SlurmJob({"a": 1, "b": int(sys.argv[1])}).state(cached_path=None)
except ValueError as error:
    print("refused:", error)
else:
    print(state.a.entries[0].name, [entry.name for entry in state.b.entries])
"""


def test_in_a_run_the_job_is_the_allocation_of_the_run(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "-N", "3", "-w", "n[1-3]", "-t", "10")
    assert done.returncode == 0, done.stderr
    path = write(alice, "under_run.py", UNDER_RUN)
    jobs = alice.jobs()
    fits = alice.run("run", "-a", "dev", path, "2")
    assert fits.returncode == 0 and "n1 ['n2', 'n3']" in fits.stdout, fits.stderr
    too_many = alice.run("run", "-a", "dev", path, "3")
    assert "refused: the meshes {'a': 1, 'b': 3} need 4 hosts, there are 3" in too_many.stdout
    assert alice.jobs() == jobs
    assert alice.run("release", "--all").returncode == 0


WAITING = """
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.job import SlurmJob
job = SlurmJob({"a": 4}, job_name="waiting", job_start_timeout=1)
try:
    job.state(cached_path=None)
except AllocationError as error:
    print("late:", error)
print("alive", job.alive())
job.kill()
print("alive", job.alive())
"""


def test_a_job_that_does_not_begin_in_time_waits_on(alice: Alice) -> None:
    alice.fill()
    try:
        output = run(alice, WAITING)
    finally:
        alice.free()
    assert "late: allocation 'waiting': did not begin within 1 s" in output and "it still waits in the queue" in output
    assert output.index("alive True") < output.index("alive False")
    assert "waiting" not in str(alice.status())
