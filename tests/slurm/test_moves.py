"""The hosts of an allocation join another one, in the Slurm job that they have; cut off anywhere, no host is lost."""

from __future__ import annotations

import json
import re

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import SLEEPER, Alice, alice, until_printed, wait_until_left, write
from tests.slurm.test_grow import WHERE, given_back, heads, jobs_of

__all__ = ["alice"]

_PATIENCE_S = 120.0


def take_two(alice: Alice) -> list[str]:
    """Take `dev` on n1, and `other` on n2 and n3; return the numbers of their jobs."""
    assert alice.run("alloc", "dev", "-N", "1", "-w", "n1", "-t", "30").returncode == 0
    assert alice.run("alloc", "other", "-N", "2", "-w", "n2,n3", "-t", "20").returncode == 0
    return [str(shown["job_id"]) for shown in alice.status()]


def hosts_of_a_run(alice: Alice, name: str) -> list[str]:
    done = alice.run("run", "-a", name, write(alice, "where.py", WHERE))
    assert done.returncode == 0, done.stdout + done.stderr
    (hosts,) = re.findall(r"^hosts (.*)$", done.stdout, re.M)
    return list(hosts.split())


def test_two_allocations_become_one(alice: Alice) -> None:
    first, second = take_two(alice)
    done = alice.run("alloc", "--grow", "dev", "--from", "other", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    job = json.loads(done.stdout)["job"]
    assert (str(job["job_id"]), job["first_rank"], job["hosts"]) == (second, 1, ["n2", "n3"])
    assert [shown["name"] for shown in alice.status()] == ["dev"]
    (joined,) = jobs_of(alice)
    assert (str(joined["job_id"]), joined["state"], joined["hosts"]) == (second, "joined", "2/2")
    assert hosts_of_a_run(alice, "dev") == ["n1", "n2", "n3"]
    gone = alice.run("run", "-a", "other", write(alice, "where.py", WHERE))
    assert gone.returncode != 0 and "other" in gone.stderr, gone.stdout + gone.stderr
    # Its name is free, and the allocation outlives its first job.
    assert alice.run("alloc", "other", "-N", "1", "-w", "n4", "-t", "20").returncode == 0
    assert alice.run("release", "other").returncode == 0
    alice.slurm("scancel", first)
    wait_until("the heir", lambda: heads(alice).get("n2"), _PATIENCE_S, accept=lambda role: role == "head")
    assert hosts_of_a_run(alice, "dev") == ["n2", "n3"]
    given_back(alice)


PROGRAM = """
import monarch_hpc
from monarch_hpc import Actor, endpoint
from monarch_hpc.core.errors import AllocationError

class Adder(Actor):
    @endpoint
    def add(self, one, two): return one + two

hosts = monarch_hpc.hosts()
old = hosts.spawn_procs().spawn("old", Adder)
try:
    hosts.grow("none")
except AllocationError as error:
    print("refused", error, flush=True)
grown = hosts.grow("other", timeout=120)
print("grown", *(entry.name for entry in grown.entries), flush=True)
both = grown.spawn_procs().spawn("both", Adder)
print("sums", *both.add.call(1, 2).get(60).values(), *old.add.call(2, 2).get().values())
"""


def test_a_program_takes_the_hosts_of_an_allocation(alice: Alice) -> None:
    take_two(alice)
    done = alice.run("run", "-a", "dev", write(alice, "moving.py", PROGRAM))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "refused" in done.stdout and "grown n1 n2 n3\n" in done.stdout and "sums 3 3 3 4\n" in done.stdout, (
        done.stdout
    )
    assert [shown["name"] for shown in alice.status()] == ["dev"]
    given_back(alice)


def test_what_cannot_move_is_refused_and_works_on(alice: Alice) -> None:
    take_two(alice)
    running = alice.start("run", "-a", "other", write(alice, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()"))
    until_printed(running, "ready")
    for arguments, words in (
        (("--grow", "dev", "--from", "other"), "is used by run"),
        (("--grow", "dev", "--from", "dev"), "is that allocation itself"),
        (("--grow", "dev", "--from", "none"), "none"),
        (("--grow", "dev", "--from", "other", "-N", "2"), "no other options"),
        (("--from", "other"), "--from goes with --grow NAME"),
    ):
        done = alice.run("alloc", *arguments)
        assert done.returncode != 0 and words in done.stderr, done.stdout + done.stderr
    running.terminate()
    running.communicate(timeout=_PATIENCE_S)
    assert alice.run("alloc", "--grow", "other", "-w", "n4", "-t", "20").returncode == 0
    done = alice.run("alloc", "--grow", "dev", "--from", "other")
    assert done.returncode != 0 and "has grown" in done.stderr, done.stdout + done.stderr
    assert hosts_of_a_run(alice, "other") == ["n2", "n3", "n4"]
    assert alice.run("release", "--all").returncode == 0
    assert alice.jobs() == {}
    wait_until_left(alice)


@pytest.mark.parametrize("at", ["claimed", "decided", "recorded"])
def test_a_command_that_is_killed_loses_no_host(alice: Alice, at: str) -> None:
    take_two(alice)
    done = alice.run("alloc", "--grow", "dev", "--from", "other", env={"MONARCH_HPC_FAILPOINTS": f"move.{at}=kill"})
    assert done.returncode in (-9, 137), done.stdout + done.stderr
    if at == "claimed":
        assert [shown["name"] for shown in alice.status()] == ["dev", "other"]
        assert hosts_of_a_run(alice, "other") == ["n2", "n3"]
        assert alice.run("release", "other").returncode == 0
    else:
        wait_until(
            "its hosts", lambda: heads(alice), _PATIENCE_S, accept={"n1": "head", "n2": "alive", "n3": "alive"}.__eq__
        )
        assert [shown["name"] for shown in alice.status()] == ["dev"]
        assert hosts_of_a_run(alice, "dev") == ["n1", "n2", "n3"]
    given_back(alice)
