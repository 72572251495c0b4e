"""A program on the login host uses two allocations: their actors call each other, and one outlives the other."""

from __future__ import annotations

import subprocess
import sys

from tests.slurm.commands import Alice, alice, until_printed, write

__all__ = ["alice"]

PROGRAM = """
import sys
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, SupervisionError, endpoint

class Member(Actor):
    @endpoint
    def host(self): return monarch_hpc.context().proc.host
    @endpoint
    def ask(self, other): return sorted(other.host.call().get(30).values())

monarch_hpc.actor.unhandled_fault_hook = lambda failure: print("told:", failure.cause, flush=True)
first, second = (monarch_hpc.hosts(name).spawn_procs().spawn("member", Member) for name in ("a", "b"))
own = [sorted(members.host.call().get(30).values()) for members in (first, second)]
assert not set(own[0]) & set(own[1]), own
assert first.slice(hosts=0).ask.call_one(second).get(30) == own[1]
assert second.ask.call_one(first).get(30) == own[0]
print("linked", flush=True)
sys.stdin.readline()
try:
    while True:  # scancel returns before the job has ended
        second.host.call_one().get(60)
except SupervisionError as error:
    print("gone:", error, flush=True)
assert sorted(first.host.call().get(30).values()) == own[0]
assert monarch_hpc.hosts("a").spawn_procs().initialized.get(60)
print("the first goes on", flush=True)
"""


def test_actors_of_two_allocations_call_each_other_and_one_is_cancelled(alice: Alice) -> None:
    for name, num in (("a", "2"), ("b", "1")):
        done = alice.run("alloc", name, "-N", num, "-t", "30")
        assert done.returncode == 0, done.stderr
    try:
        program = alice.lab.popen(
            [sys.executable, write(alice, "program.py", PROGRAM)], env=alice.environment({}), stdin=subprocess.PIPE
        )
        until_printed(program, "linked")
        (job,) = [str(one["job_id"]) for one in alice.status() if one["name"] == "b"]
        alice.slurm("scancel", job)
        assert program.stdin is not None
        program.stdin.write("\n")
        program.stdin.flush()
        assert "gone:" in until_printed(program, "the first goes on")
        assert program.communicate(timeout=180) == ("", "") and program.returncode == 0
    finally:
        done = alice.run("release", "--all")
        assert done.returncode == 0, done.stderr
    assert alice.jobs() == {}
