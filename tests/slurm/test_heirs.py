"""The first host of an allocation loses power: a program on the login host goes on, and `run` works on the others."""

from __future__ import annotations

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, held_alone, until_printed, write

__all__ = ["alice", "held_alone"]

PROGRAM = """
import sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint
import monarch_hpc.actor
monarch_hpc.actor.unhandled_fault_hook = lambda failure: print("told", failure, flush=True)

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

hosts = monarch_hpc.hosts()
names = [entry.name for entry in hosts.entries]
print("hosts", names, flush=True)
first = names.index("n1") if "n1" in names else -1
living = hosts.slice(hosts=slice(first + 1, len(names)))
echo = living.spawn_procs().spawn("echo", Echo)
print("calls", *echo.echo.call(0).get(60).values(), flush=True)
if first >= 0:
    end_s = time.monotonic() + 25
    while time.monotonic() < end_s:
        list(echo.echo.call(1).get(60).values())
        time.sleep(0.05)
    print("fresh", *living.spawn_procs().spawn("echo", Echo).echo.call(2).get(60).values(), flush=True)
"""


def test_the_first_host_without_power_has_an_heir(held_alone: Alice) -> None:
    program = write(held_alone, "heirs.py", PROGRAM)
    going = held_alone.start("run", "-a", "dev", program)
    until_printed(going, "calls")
    held_alone.lab.kill_host("n1")
    wait_until("the heir", lambda: list(held_alone.shared.rglob("head.2.json")))
    out, err = going.communicate(timeout=120)
    assert going.returncode == 0 and "fresh 2 2 2" in out, (out, err)
    done = held_alone.run("run", "-a", "dev", program)
    assert done.returncode == 0 and "calls 0 0 0" in done.stdout, (done.stdout, done.stderr)
