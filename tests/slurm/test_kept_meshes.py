"""Meshes on a real allocation that stay when their run ends: with their GPUs, without a host, and until it is idle."""

from __future__ import annotations

import ast
import json

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, held, kill_all_on_login, until_printed, wait_until_left, write

__all__ = ["alice", "held"]

WEIGHTS = """
import os
from monarch_hpc import Actor, endpoint

class Weights(Actor):
    def __init__(self):
        self.count = 0

    @endpoint
    def add(self):
        self.count += 1
        return self.count

    @endpoint
    def where(self):
        return os.uname().nodename, os.getpid(), os.environ.get("CUDA_VISIBLE_DEVICES")
"""

KEEP = """
import sys, time
import monarch_hpc
from weights import Weights
procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 1}, name="procs")
weights = procs.spawn("weights", Weights)
weights.add.call().get()
procs.keep("weights")
print(sorted(weights.where.call().get().values()), flush=True)
if len(sys.argv) > 1:
    print("kept", flush=True)
    time.sleep(600)
"""

USE = """
import monarch_hpc
weights = monarch_hpc.kept("weights")["weights"]
print(sorted(weights.where.call().get().values()))
print(set(weights.add.call().get().values()))
"""


def test_the_next_run_finds_the_same_actors_after_the_login_host_was_lost(held: Alice) -> None:
    write(held, "weights.py", WEIGHTS)
    first = held.start("run", "-a", "dev", write(held, "keep.py", KEEP), "stay")
    shown = until_printed(first, "kept")
    kill_all_on_login(held)
    first.communicate(timeout=60)
    use = write(held, "use.py", USE)
    for place, count in (("here", 2), ("host0", 3)):
        done = held.run("run", "-a", "dev", "--on", place, use)
        assert done.returncode == 0, done.stderr
        found, counts = done.stdout.splitlines()[-2:]
        assert found in shown and counts == f"{{{count}}}"
    (mesh,) = json.loads(held.run("mesh", "list", "--json").stdout)["meshes"]
    assert (mesh["name"], mesh["procs"], mesh["alive"], len(mesh["hosts"])) == ("weights", 4, 4, 4)
    wait_until("the end of the runs", lambda: held.status("dev")[0]["runs"], 120.0, accept=lambda runs: runs == [])
    assert "(keeps weights)" in held.run("status", "dev").stdout
    done = held.run("mesh", "stop", "weights")
    assert done.returncode == 0, done.stderr


def test_a_host_that_is_lost_takes_its_procs_and_idle_hosts_go_back_with_all_of_them(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "-N", "4", env={"MONARCH_HPC_SLURM__IDLE_MIN": "1"})
    assert done.returncode == 0, done.stderr
    write(alice, "weights.py", WEIGHTS)
    done = alice.run("run", "-a", "dev", write(alice, "keep.py", KEEP))
    assert done.returncode == 0, done.stderr
    hosts = sorted(name for name, _, _ in ast.literal_eval(done.stdout.splitlines()[-1]))
    use = """
import monarch_hpc
weights = monarch_hpc.kept("weights")["weights"]
for host in range(4):
    try:
        print(weights.slice(hosts=host, gpus=0).where.call_one().get()[0])
    except monarch_hpc.SupervisionError as error:
        print(type(error).__name__)
"""
    # Not the first one: its loss is another test's.
    (shown,) = alice.status("dev")
    assert isinstance(shown["hosts"], list)
    lost = next(host["name"] for host in shown["hosts"] if not host["head"])
    alice.lab.kill_host(lost)
    wait_until(
        "its loss",
        lambda: alice.run("mesh", "list", "--json").stdout,
        120.0,
        accept=lambda text: '"alive": 3' in text,
    )
    done = alice.run("run", "-a", "dev", write(alice, "use.py", use))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(["ProcDied", *(host for host in hosts if host != lost)])
    wait_until("the end of the job", alice.jobs, 240.0, accept=lambda jobs: not jobs)
    wait_until_left(alice)
