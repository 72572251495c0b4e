"""Ghost jobs: hosts without an agent that Slurm still charges are given back, by the last agent or by `status`."""

from __future__ import annotations

import os
import signal

from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, wait_until_left

__all__ = ["alice"]


def agent_on(alice: Alice, host: str) -> int:
    """The agent of a host; its first zygote is a fork of it, with its command line."""
    same = [pid for pid, command in alice.lab.processes("alice", host) if "monarch_hpc.agent --rank" in command]
    (agent,) = [pid for pid in same if (stat := read_stat(pid)) is not None and stat.parent not in same]
    return agent


def hosts_of(alice: Alice, name: str) -> str:
    return alice.slurm("squeue", "--me", "-h", f"--name={name}", "-o", "%N").strip()


def test_a_job_that_has_lost_its_first_host_and_its_agents_is_cancelled(alice: Alice) -> None:
    soon = {"MONARCH_HPC_LIVENESS__FENCE_S": "1", "MONARCH_HPC_LIVENESS__DEAD_S": "6"}  # before Slurm speaks: no heir
    for name, hosts in (("left", "n1,n2"), ("killed", "n3,n4")):
        done = alice.run("alloc", name, "-N", "2", "-w", hosts, "-t", "30", env=soon)
        assert done.returncode == 0, done.stderr
    jobs = {str(shown["name"]): str(shown["job_name"]) for shown in alice.status()}
    os.kill(agent_on(alice, "n4"), signal.SIGKILL)
    alice.lab.kill_host("n1")
    alice.lab.kill_host("n3")

    # Nothing is left on n4, but while Slurm takes n3 for one of the job's hosts, not all hosts can be asked.
    assert alice.jobs()[jobs["killed"]] == "RUNNING"
    wait_until("Slurm to take n3 out of its job", lambda: hosts_of(alice, jobs["killed"]), 240.0, accept="n4".__eq__)
    done = alice.run("status")
    assert done.returncode == 0, done.stderr
    assert "was cancelled: no agent is left on its hosts (n4)" in done.stderr, done.stdout + done.stderr
    assert "n3, with its head and batch script, has left the job" in done.stderr

    # The agent on n2 has lost its head, and cancels its job when Slurm has taken n1 out of it.
    wait_until("the end of both jobs", alice.jobs, 240.0, accept=lambda left: not left)
    shown = {name: alice.status(name)[0] for name in ("left", "killed")}
    assert {name: str(one["state"]).partition(":")[0] for name, one in shown.items()} == dict.fromkeys(shown, "ended")
    assert "n1, with its head and batch script, has left the job" in str(shown["left"]["state"])
    changes = alice.run("status", "--changes", "left").stdout.splitlines()
    assert any("ends" in line and "node-failure" in line for line in changes), changes
    wait_until_left(alice, "n2", "n4")
