"""Processes that a killed agent left on its host: they are gone once the next allocation has begun there."""

from __future__ import annotations

import json
import os
import signal

from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import COOKIE
from tests.slurm.commands import Alice, alice, release

__all__ = ["alice"]

DAEMON = "setsid sh -c 'sleep 567 & exec sleep 567' > /dev/null 2>&1 &"


def daemons(alice: Alice, host: str) -> list[int]:
    return [pid for pid, command in alice.lab.processes("alice", host) if command.startswith("sleep 567")]


def wait_for_daemons(alice: Alice, host: str, num: int) -> None:
    wait_until(f"daemons on {host}", lambda: len(daemons(alice, host)), 120.0, accept=lambda found: found == num)


def test_the_next_agent_ends_what_a_killed_one_left(alice: Alice) -> None:
    # As a daemon of an allocation whose agent and whose job are gone, on a cluster without cgroups.
    mark = f"{COOKIE}={'a' * 32}"
    for host, marks in (("n1", [mark, "SLURM_JOB_ID=999"]), ("n2", [mark]), ("login", [mark])):
        alice.lab.run(["env", *marks, "sh", "-c", DAEMON], host=host, check=True)
        wait_for_daemons(alice, host, 2)
    alice.lab.run(["sh", "-c", DAEMON], host="n1", check=True)  # not ours
    wait_for_daemons(alice, "n1", 4)
    done = alice.run("alloc", "dev", "-N", "2", "-w", "n[1-2]")
    assert done.returncode == 0, done.stderr
    wait_for_daemons(alice, "n1", 2)
    wait_for_daemons(alice, "n2", 0)
    told = "ended 2 processes that an earlier allocation"
    wait_until("the report", lambda: alice.run("logs", "dev", "--agents").stdout, accept=lambda text: told in text)
    shown = json.loads(alice.run("gc", "--dry-run", "--json").stdout)
    assert [one["command"] for one in shown["processes"]] == ["sleep 567"] * 2
    done = alice.run("gc", "--json")
    assert json.loads(done.stdout)["killed"] == 2, done.stderr
    wait_for_daemons(alice, "login", 0)
    assert alice.status()[0]["state"] == "ready"
    for pid in daemons(alice, "n1"):
        os.kill(pid, signal.SIGKILL)
    wait_for_daemons(alice, "n1", 0)
    release(alice)
