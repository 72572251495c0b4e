"""Hosts whose agent has died come back if they are still in the job; spares take the place of others."""

from __future__ import annotations

import json
import os
import re
import signal

from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import LabFaults
from monarch_hpc.testing.slurmlab.processes import read_command
from tests.slurm.commands import LOSES_ITS_SECOND_HOST, Alice, alice, until_printed, write

__all__ = ["alice"]

_PATIENCE_S = 120.0

WHERE = """
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Where(Actor):
    @endpoint
    def host(self): return monarch_hpc.context().proc.host, sorted(__import__("os").sched_getaffinity(0))

found = monarch_hpc.hosts().spawn_procs().spawn("where", Where).host.call().get().values()
print("hosts", *[host for host, _ in found], len({tuple(cpus) for _, cpus in found}), flush=True)
"""

HEALER = (
    LOSES_ITS_SECOND_HOST
    + """\
except ActorDied as error:
    print("died", error.cause, flush=True)
begun = time.monotonic()
healed = procs.heal()
print(f"healed after {time.monotonic() - begun:.1f} s: moved {healed.moved} at", *where.host.call().get().values())
"""
)


def agent_on(alice: Alice, host: str) -> int:
    """The agent of *host*: our process, not the one of Slurm's that started it."""
    found = [pid for pid, _ in alice.lab.processes("alice", host) if is_agent(pid)]
    return found[0] if found else 0


def is_agent(pid: int) -> bool:
    command = [word.rstrip("\0") for word in read_command(pid)]
    return "monarch_hpc.agent" in command and "python" in command[0]


def host_states(alice: Alice) -> dict[str, object]:
    (shown,) = alice.status("dev")
    assert isinstance(shown["hosts"], list)
    return {host["name"]: host["state"] for host in shown["hosts"]}


def changes(alice: Alice, host: str) -> list[tuple[str, str]]:
    document = json.loads(alice.run("status", "--changes", "dev", "--json").stdout)
    return [(change["what"], change["cause"]) for change in document["changes"] if change["subject"] == host]


def test_a_killed_agent_is_back_and_new_programs_use_its_host(alice: Alice) -> None:
    # By name: the host before may still be cleaned up after another test, and n2 would be the head's.
    assert alice.run("alloc", "dev", "-N", "3", "-w", "n1,n2,n3", "-t", "30").returncode == 0
    for num in (1, 2):
        before = agent_on(alice, "n2")
        os.kill(before, signal.SIGKILL)
        wait_until(
            "its return",
            lambda: [what for what, _ in changes(alice, "n2")].count("returned"),
            _PATIENCE_S,
            accept=num.__eq__,
        )
        assert agent_on(alice, "n2") not in (0, before)
        assert host_states(alice) == {"n1": "alive", "n2": "alive", "n3": "alive"}
        done = alice.run("run", write(alice, "where.py", WHERE))
        assert done.returncode == 0 and "hosts n1 n2 n3 1\n" in done.stdout, done.stdout + done.stderr
    whats = [what for what, _ in changes(alice, "n2")]
    assert whats == ["joined", *["lost", "agent", "returned"] * 2]
    assert re.search("connection|agent on n2", changes(alice, "n2")[1][1])
    released = alice.run("release", "--all")
    assert released.returncode == 0, released.stderr


def test_an_agent_is_started_again_once_a_new_slurmctld_lets_steps_begin(alice: Alice) -> None:
    """It refuses all steps of the jobs that it has read until their hosts have reported."""
    done = alice.run("alloc", "dev", "-N", "2", "-w", "n1,n2", "-t", "30", env={"MONARCH_HPC_HEAL__TRIES": "1"})
    assert done.returncode == 0, done.stderr
    going = alice.start("run", "-a", "dev", write(alice, "healer.py", HEALER))
    until_printed(going, "ready")
    with LabFaults(alice.lab).without_slurmctld():
        pass
    os.kill(agent_on(alice, "n2"), signal.SIGKILL)
    out, err = going.communicate(timeout=_PATIENCE_S)
    assert re.search(r"^healed after .* moved {} at n1 n2$", out, re.MULTILINE), (out, err)
    assert alice.run("release", "dev").returncode == 0


def test_a_spare_host_takes_the_place_of_one_without_power(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "3", "--spare", "1", "-t", "30").returncode == 0
    (shown,) = alice.status("dev")
    assert (shown["spares"], shown["lost"]) == (["n4"], {})
    assert "4/4 (spare n4)" in alice.run("status", "dev").stdout
    running = alice.start("run", write(alice, "program.py", HEALER))
    until_printed(running, "ready n1 n2 n3")
    alice.lab.kill_host("n2")
    out, err = running.communicate(timeout=_PATIENCE_S)
    assert running.returncode == 0, out + err
    assert "moved {1: 'n4'} at n1 n4 n3" in out, out + err
    lost = [cause for what, cause in changes(alice, "n2") if what == "agent"]
    assert "does not answer" in lost[0], "healing has waited for no attempt there"
    (shown,) = alice.status("dev")
    assert isinstance(shown["lost"], dict)
    assert shown["spares"] == [] and list(shown["lost"]) == ["n2"], shown
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert "hosts n1 n3 n4 1\n" in done.stdout, done.stdout + done.stderr

    # It is booted before Slurm has taken it from the job, or after: then nobody starts an agent there.
    alice.lab.boot_host("n2")
    settled = re.compile("returned|not started again: it is not in the job any more")
    found = wait_until(
        "its return, or that it is given up",
        lambda: " ".join(map(str, changes(alice, "n2"))),
        _PATIENCE_S,
        accept=settled.search,
    )
    nodes = alice.slurm("squeue", "--me", "-h", "-o", "%N").strip()
    assert ("returned" in found) == ("n2" in alice.slurm("scontrol", "show", "hostnames", nodes).split()), found
    assert alice.run("release", "--all").returncode == 0
