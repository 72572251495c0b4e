"""Hosts of Slurm: the location that a program and its procs see, and procs for MPI as tasks of a step."""

from __future__ import annotations

import os
import re
import signal

import pytest

from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.testing import wait_until
from tests.slurm.commands import HOSTS, Alice, alice, held, held_alone, steps, until_printed, wait_for_steps, write

__all__ = ["alice", "held", "held_alone"]

PLACES = """
import monarch_hpc
from monarch_hpc import Actor, AllocationError, endpoint

class Place(Actor):
    @endpoint
    def proc(self):
        return monarch_hpc.context().proc
    @endpoint
    def nested(self):
        with monarch_hpc.this_host().spawn_procs({"x": 2}) as procs:
            return [proc.host for proc in procs.procs]

here = monarch_hpc.context().proc
print("program", here.host, here.host_rank, [entry.name for entry in monarch_hpc.this_host().entries])
for proc in monarch_hpc.hosts().spawn_procs().spawn("place", Place).proc.call().get().values():
    slurm = proc.slurm
    known = proc.slurm_job_id == slurm.job_id != ""
    print("proc", proc.host, slurm.node, slurm.node_id, slurm.step_id, known, len(proc.cpus) > 0)
place = monarch_hpc.hosts().slice(hosts=2).spawn_procs().spawn("place", Place)
print("nested", place.nested.call_one().get())
try:
    monarch_hpc.hosts().shutdown()
except AllocationError as error:
    print("refused", error)
with monarch_hpc.hosts() as hosts:
    hosts.spawn_procs()
print("left")
"""

MPI = """
import os, signal
import monarch_hpc
from monarch_hpc import Actor, ActorDied, MeshFailure, endpoint
import monarch_hpc.actor
monarch_hpc.actor.unhandled_fault_hook = lambda failure: print("told", failure, flush=True)

class Rank(Actor):
    @endpoint
    def sum(self):
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        return world.rank, world.size, world.allreduce(world.rank), monarch_hpc.context().proc.rank
    @endpoint
    def leave(self):
        os._exit(5)
    @endpoint
    def environment(self, name):
        return os.environ.get(name)

hosts = monarch_hpc.hosts().slice(hosts=slice(1, 4))
with hosts.spawn_procs({"gpus": 2}, env={"MINE": "1"}, name="world", mpi=True) as procs:
    ranks = procs.spawn("rank", Rank)
    assert list(ranks.sum.call().get().values()) == [(rank, 6, 15, rank) for rank in range(6)]
    assert set(ranks.environment.call("MINE").get().values()) == {"1"}
    assert set(ranks.environment.call("CUDA_VISIBLE_DEVICES").get().values()) == {"0,1,2,3", "2,3,0,1"}
    print([proc.host for proc in procs.procs], flush=True)
    try:
        ranks.slice(hosts=1, gpus=1).leave.call_one().get()
    except ActorDied as error:
        print(error.cause.splitlines()[0], flush=True)
try:
    hosts.slice(hosts=slice(None, None, -1)).spawn_procs(mpi=True)
except ValueError as error:
    print(error)
"""

WAITING = """
import time
import monarch_hpc
import monarch_hpc.actor
monarch_hpc.actor.unhandled_fault_hook = lambda failure: None
procs = monarch_hpc.hosts().spawn_procs({"gpus": 2}, mpi=True)
procs.initialized.get()
print("ready", flush=True)
time.sleep(600)
"""


def test_places_have_slurms_names(held: Alice) -> None:
    before = steps(held)
    assert [line.split()[-1] for line in before] == ["agents"]
    done = held.run("run", write(held, "places.py", PLACES))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "program login -1 ['n1']" in lines
    for number in range(4):
        assert f"proc n{number + 1} n{number + 1} {number} 0 True True" in lines
    assert "nested ['n3', 'n3']" in lines
    assert any(line.startswith("refused allocation ") and "monarch-hpc release" in line for line in lines)
    assert lines[-1] == "left"
    wait_for_steps(held, before)


def test_the_world_of_mpi_is_the_mesh(held: Alice) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    before = steps(held)
    done = held.run("run", write(held, "mpi.py", MPI), timeout_s=120.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "['n2', 'n2', 'n3', 'n3', 'n4', 'n4']" in done.stdout
    assert "exit code 5" in done.stdout
    assert "mpi=True needs hosts in Slurm's order, and these are not: n4, n3, n2" in done.stdout
    wait_for_steps(held, before)


def test_procs_of_a_step_end_with_their_agent_and_with_their_run(held_alone: Alice) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")

    lab = held_alone.lab

    def tasks(host: str) -> list[int]:
        return [pid for pid, command in lab.processes("alice", host) if "monarch_hpc.agent.procs.mpi_task" in command]

    def others() -> list[str]:
        return [step for step in steps(held_alone) if not step.endswith(" agent")]  # which is started again

    before = steps(held_alone)
    running = held_alone.start("run", write(held_alone, "waiting.py", WAITING))
    until_printed(running, "ready")
    assert {host: len(tasks(host)) for host in HOSTS} == dict.fromkeys(HOSTS, 4)  # each with its proc
    # The first zygote is a fork of its agent, and has its command line.
    same = [pid for pid, command in lab.processes("alice", "n3") if "monarch_hpc.agent --rank" in command]
    (agent,) = [pid for pid in same if (stat := read_stat(pid)) is not None and stat.parent not in same]
    os.kill(agent, signal.SIGKILL)
    wait_until("no proc where the agent died", lambda: tasks("n3"), 120.0, accept=lambda left: not left)
    assert [len(tasks(host)) for host in ("n1", "n2", "n4")] == [4, 4, 4]
    running.kill()
    running.communicate(timeout=180)
    wait_until("no proc", lambda: [tasks(host) for host in HOSTS], 120.0, accept=lambda left: not any(left))
    wait_until("her steps", others, 120.0, accept=lambda seen: seen == before)


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        ("no_such_plugin", "srun, which was to start it, ended: exit code 1 (config key 'procs.mpi' names the plugin)"),
        # Open MPI does not support it: version 4 aborts, and in version 5 each rank is alone in its world.
        ("pmi2", "the bootstrap of its mesh failed on rank"),
    ],
)
def test_a_plugin_that_does_not_do_says_so(alice: Alice, plugin: str, words: str) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    env = {"MONARCH_HPC_PROCS__MPI": plugin}
    assert alice.run("alloc", "one", "-w", "n1", "-t", "5", env=env).returncode == 0
    text = "import monarch_hpc\nmonarch_hpc.hosts().spawn_procs({'gpus': 2}, mpi=True).initialized.get()\n"
    done = alice.run("run", write(alice, "one.py", text))
    assert alice.run("release", "--all").returncode == 0
    assert done.returncode == 1
    assert re.search(rf"(SpawnError|BootstrapFailed): no proc on n1: {re.escape(words)}", done.stderr), done.stderr
    assert "\0" not in done.stderr
