"""Heterogeneous jobs: one allocation whose hosts are groups, of `alloc ... : ...` and of a user's own job."""

from __future__ import annotations

import re

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, no_connections, release, write

__all__ = ["alice"]

PROGRAM = """
import os, sys
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Where(Actor):
    @endpoint
    def tell(self, word): return f"{word}@{monarch_hpc.context().proc.host}:{os.environ.get('CUDA_VISIBLE_DEVICES')}"
    @endpoint
    def ask(self, others): return sorted(others.tell.call("across").get().values())

everyone = monarch_hpc.hosts()
print("all", len(everyone))
first, second = (monarch_hpc.hosts(group=name) for name in sys.argv[1:3])
there = second.spawn_procs(per_host={"gpus": 2}).spawn("there", Where)
here = first.spawn_procs().spawn("here", Where)
print("one", *here.tell.call("one").get().values())
print("two", *sorted(there.tell.call("two").get().values()))
print("over", *here.ask.call_one(there).get())
together = everyone.spawn_procs().spawn("together", Where)
print("both", *sorted(word.partition(":")[0] for word in together.tell.call("both").get().values()))
try:
    monarch_hpc.hosts(group="none")
except ValueError as error:
    print("error", error)
try:
    everyone.spawn_procs(mpi=True)
except ValueError as error:
    print("mpi", error)
"""


def check(out: str, names: tuple[str, str]) -> None:
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert lines["all"] == "3"
    (one,) = re.findall(r"one@(n\d):", lines["one"])
    two = re.findall(r"two@(n\d):(\d)", lines["two"])
    hosts = sorted({host for host, _ in two})
    assert len(two) == 4 and len(hosts) == 2 and one not in hosts and {gpu for _, gpu in two} == {"0", "1"}
    assert re.findall(r"across@(n\d)", lines["over"]) == [host for host in hosts for _ in range(2)]
    assert lines["both"].split() == sorted(f"both@{host}" for host in (one, *hosts))
    assert lines["error"] == f"group is 'none', which is not a group of the allocation: it has {', '.join(names)}"
    assert lines["mpi"].startswith("mpi=True needs hosts of one group, and these (n")


def test_an_allocation_of_two_groups_is_one_program_s(alice: Alice) -> None:
    taken = alice.run(
        "alloc", "dev", "-t", "30", "-N1", "--group", "cpu", ":", "-N2", "--gpus-per-node=2", "--group=gpu"
    )
    assert taken.returncode == 0, taken.stderr
    assert "3 hosts" in taken.stdout
    (found,) = alice.status("dev")
    assert [host["group"] for host in found["hosts"]] == ["cpu", "gpu", "gpu"]  # type: ignore[attr-defined]
    assert list(alice.jobs().values()) == ["RUNNING"]
    script = write(alice, "program.py", PROGRAM)
    done = alice.run("run", script, "cpu", "gpu")
    assert done.returncode == 0, done.stderr
    check(done.stdout, ("cpu", "gpu"))
    with no_connections(alice):  # through a step, which has to name the head's component
        relayed = alice.run("run", script, "cpu", "gpu")
        assert relayed.returncode == 0, relayed.stderr
        check(relayed.stdout, ("cpu", "gpu"))
    assert alice.run("node", "check").returncode == 0
    for verb in (("extend", "dev", "+30m"), ("shrink", "dev", "-N2")):
        refused = alice.run(*verb)
        assert refused.returncode == 72 and "has 2 groups of hosts" in refused.stderr, refused.stderr
    release(alice)


def test_a_cancelled_job_ends_with_all_its_groups(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-t", "30", ":", "-N2").returncode == 0
    job = str(alice.status("dev")[0]["job_id"])
    alice.slurm("scancel", job)
    wait_until("its end", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    found = wait_until("the end", lambda: alice.status("dev")[0], accept=lambda found: not found["live"])
    assert found["state"] == "ended: CANCELLED: it was cancelled"


def test_a_hetjob_of_the_user_s_own_has_numbered_groups(alice: Alice) -> None:
    script = write(alice, "program.py", PROGRAM)
    lines = ["#!/bin/bash", "#SBATCH -N1 --exclusive -t 30", "#SBATCH -o own.out", "#SBATCH hetjob"]
    lines += ["#SBATCH -N2 --exclusive --gpus-per-node=2", f"exec monarch-hpc run {script} 0 1"]
    job = write(alice, "own.sbatch", "\n".join(lines) + "\n")
    alice.lab.run(["sbatch", "--export=ALL", job], folder=alice.folder, env=alice.environment({}), check=True)
    wait_until("its end", alice.jobs, 240.0, accept=lambda jobs: not jobs)
    out = (alice.folder / "own.out").read_text()
    check("\n".join(line for line in out.splitlines() if not line.startswith("monarch-hpc")), ("0", "1"))


def test_what_slurm_says_of_several_groups(alice: Alice) -> None:
    planned = alice.run("alloc", "--test-only", "-N1", ":", "-N2")
    assert planned.returncode == 0, planned.stderr
    refused = alice.run("alloc", "--test-only", "-N1", ":", "-N9")
    assert refused.returncode != 0
    assert alice.run("alloc", "--estimate", "-N1", ":", "-N2").returncode == 64
    named = alice.run("alloc", "-N1", "--group=a", ":", "--group=a")
    assert named.returncode == 64 and "two groups have this name" in named.stderr
    assert alice.jobs() == {}
