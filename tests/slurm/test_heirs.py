"""The first host of an allocation loses power: programs go on, later ones begin, and the job ends when it shall."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from functools import partial

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import FOUR, Alice, alice, argv, declare_down, procs_left, until_printed, write
from tests.slurm.test_returns import agent_on, changes

__all__ = ["alice"]

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

first, ready = sys.argv[1:3]
hosts = monarch_hpc.hosts()
names = [entry.name for entry in hosts.entries]
print("hosts", *names, flush=True)
living = hosts.slice(hosts=slice(int(first in names), len(names)))
echo = living.spawn_procs().spawn("echo", Echo)
print("calls", *echo.echo.call(0).get(60).values(), flush=True)
if first in names:
    fresh = None
    while fresh is None or not fresh.done():
        assert set(echo.echo.call(1).get(60).values()) == {1}
        time.sleep(0.05)
        with open(ready) as file:  # the head's host is off
            if fresh is None and file.read():
                fresh = living.spawn_procs().spawn("echo", Echo).echo.call(2)
    print("fresh", *fresh.get(60).values(), flush=True)
"""


NEAR = """
import sys, time
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, endpoint

monarch_hpc.actor.unhandled_fault_hook = lambda failure: None

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

hosts = monarch_hpc.hosts()
names = [entry.name for entry in hosts.entries]
echo = hosts.spawn_procs().spawn("echo", Echo)
print("calls", *echo.echo.call(0).get(60).values(), flush=True)
near = [echo.slice(hosts=names.index(name)) for name in sys.argv[2:]]
while not open(sys.argv[1]).read():
    for one in near:
        assert one.echo.call_one(1).get(60) == 1
    time.sleep(0.05)
print("over", flush=True)
"""
"""Calls procs on the hosts of its own half until a file has contents."""

PROBE = """
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

hosts = monarch_hpc.hosts()
hosts.spawn_procs().spawn("echo", Echo).echo.call(1).get(60)
print("on", *(entry.name for entry in hosts.entries), flush=True)
"""


def soon(fence_s: int) -> dict[str, str]:
    """Short limits for contact that is lost."""
    limits = {"HEARTBEAT_S": "0.25", "SUSPECT_S": "1", "DEAD_S": "4", "FENCE_S": str(fence_s)}
    liveness = {f"MONARCH_HPC_LIVENESS__{key}": value for key, value in limits.items()}
    return liveness | {"MONARCH_HPC_AGENT__GRACE_S": "1"}


def seats(alice: Alice) -> dict[str, tuple[str, bool]]:
    """State of each host, and whether it has the head."""
    (shown,) = alice.status("dev")
    return {host["name"]: (host["state"], host["head"]) for host in shown["hosts"]}  # type: ignore[attr-defined]


def await_end(alice: Alice, host: str) -> None:
    """Wait for the end of all jobs, and check that no process is left on a host."""
    wait_until("the end of the job", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    assert alice.lab.processes("alice", host) == []


def lose_first(
    alice: Alice,
    first: str,
    program: str,
    num_left: int,
    env: Mapping[str, str] | None = None,
) -> None:
    """Power off the first host while a program runs, and check that it goes on, and that another one can run."""
    off = write(alice, "off", "")
    going = alice.start("run", "-a", "dev", program, first, off, env=env)
    until_printed(going, "calls")
    alice.lab.kill_host(first)
    write(alice, "off", "now")
    out, err = going.communicate(timeout=240)
    assert going.returncode == 0 and f"fresh {' '.join('2' * num_left)}\n" in out, (out, err)
    done = alice.run("run", "-a", "dev", program, first, off)
    assert done.returncode == 0 and f"calls {' '.join('0' * num_left)}\n" in done.stdout, (done.stdout, done.stderr)


def test_the_first_hosts_without_power_have_heirs(alice: Alice) -> None:
    done = alice.run("alloc", "dev", *FOUR)
    assert done.returncode == 0, done.stderr
    program = write(alice, "heirs.py", PROGRAM)
    lose_first(alice, "n1", program, 3)
    (shown,) = alice.status("dev")
    assert shown["state"] == "ready"
    assert seats(alice) == {
        "n1": ("lost", False),
        "n2": ("alive", True),
        "n3": ("alive", False),
        "n4": ("alive", False),
    }
    lose_first(alice, "n2", program, 2)
    assert [host for host, (_, is_head) in seats(alice).items() if is_head] == ["n3"]
    assert "this agent is the head of term" in alice.run("logs", "dev", "--agents").stdout
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n4")


def test_of_two_hosts_with_a_run_the_other_one_leads_at_once(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "-N", "2", "-w", "n3,n4", "-t", "30")
    assert done.returncode == 0, done.stderr
    lose_first(alice, "n3", write(alice, "heirs.py", PROGRAM), 1)
    # Else the heir would stop for want of a voice: the other host is lost, and the run is over.
    closed, told = "no heir of this head can be elected any more", lambda: alice.run("logs", "dev", "--agents").stdout
    assert "Slurm says" not in wait_until(f"'{closed}'", told, accept=lambda logs: closed in logs)
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n4")


def test_of_two_hosts_without_a_run_the_other_one_leads_once_slurm_has_spoken(alice: Alice) -> None:
    patient = {"MONARCH_HPC_LIVENESS__FENCE_S": "150"}  # longer than Slurm takes to give up a host
    done = alice.run("alloc", "dev", "-N", "2", "-w", "n3,n4", "-t", "30", env=patient)
    assert done.returncode == 0, done.stderr
    alice.lab.kill_host("n3")
    declare_down(alice, "n3")
    wait_until("the heir", lambda: list(alice.shared.rglob("head.[2-9].json")), 120.0)
    assert "Slurm says that n3, with the head, has left the job" in alice.run("logs", "dev", "--agents").stdout
    program, off = write(alice, "heirs.py", PROGRAM), write(alice, "off", "")
    done = alice.run("run", "-a", "dev", program, "n3", off)
    assert done.returncode == 0 and "calls 0\n" in done.stdout, (done.stdout, done.stderr)
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n4")


def test_an_heir_that_nobody_uses_cancels_the_job_without_its_batch_script(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "-N", "3", "-w", "n1,n2,n3", env={"MONARCH_HPC_SLURM__IDLE_MIN": "0.5"})
    assert done.returncode == 0, done.stderr
    alice.lab.kill_host("n1")
    wait_until("the heir", lambda: list(alice.shared.rglob("head.[2-9].json")), 60.0)
    await_end(alice, "n3")
    (shown,) = alice.status("dev")
    assert shown["state"] == "ended: RELEASED: no run and no program for 30 s (config key 'slurm.idle_min')"


def test_a_head_without_network_is_followed_and_leaves(alice: Alice) -> None:
    done = alice.run("alloc", "dev", *FOUR, env={"MONARCH_HPC_AGENT__REJOIN_S": "0"})
    assert done.returncode == 0, done.stderr
    program, off = write(alice, "heirs.py", PROGRAM), write(alice, "off", "")
    going = alice.start("run", "-a", "dev", program, "n1", off)
    until_printed(going, "calls")
    alice.lab.link_down("n1")
    write(alice, "off", "now")
    wait_until("the heir", lambda: list(alice.shared.rglob("head.[2-9].json")), 60.0)
    out, err = going.communicate(timeout=120)
    assert going.returncode == 0 and "fresh 2 2 2\n" in out, (out, err)
    wait_until("the end of all on n1", lambda: _ours(alice, "n1"), 120.0, accept=lambda left: not left)
    # Before that, the end of its batch script, which is there, would end the job.
    wait_until("Slurm's word", lambda: alice.slurm("squeue", "--me", "-h", "-o", "%N"), 180.0, accept=_is_without_first)
    # With that word slurmctld kills the batch script, as long as it tries to reach n1; its end, too, would end the job.
    wait_until("the last message to n1", lambda: alice.slurm("sdiag"), 180.0, accept=_sends_nothing)
    alice.lab.link_up("n1")
    done = alice.run("run", "-a", "dev", program, "n1", off)
    assert done.returncode == 0 and "calls 0 0 0\n" in done.stdout, (done.stdout, done.stderr)
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n4")


def renew_second(alice: Alice) -> int:
    """Kill the agent of n2, and wait until the head on n1 has started another; return that one's pid."""
    os.kill(agent_on(alice, "n2"), signal.SIGKILL)
    wait_until("its return", lambda: "returned" in [what for what, _ in changes(alice, "n2")], 60.0)
    return agent_on(alice, "n2")


def test_a_head_whose_cable_is_in_again_before_slurm_has_noticed_is_seated_as_an_agent(alice: Alice) -> None:
    env = soon(fence_s=4) | {"MONARCH_HPC_HEAL__BACKOFF_S": "1"}
    done = alice.run("alloc", "dev", *FOUR, env=env)
    assert done.returncode == 0, done.stderr
    renewed = renew_second(alice)
    program, off = write(alice, "heirs.py", PROGRAM), write(alice, "off", "")
    going = alice.start("run", "-a", "dev", program, "n1", off, env=env)
    until_printed(going, "calls")
    alice.lab.link_down("n1")
    write(alice, "off", "now")
    agents = ("logs", "dev", "--agents")
    wait_until("the fence", lambda: alice.run(*agents).stdout, 120.0, accept=lambda text: "asks to be seated" in text)
    # In time: Slurm would end the job with its batch script, once it has given up the host of that.
    alice.lab.link_up("n1")
    alive = {"n1": ("alive", False), "n2": ("alive", True), "n3": ("alive", False), "n4": ("alive", False)}
    wait_until("the return of n1", partial(seats, alice), 120.0, accept=lambda seen: seen == alive)
    out, err = going.communicate(timeout=240)
    assert going.returncode == 0 and "fresh 2 2 2\n" in out, (out, err)
    done = alice.run("run", "-a", "dev", program, "none", off, env=env)
    assert done.returncode == 0 and "calls 0 0 0 0\n" in done.stdout, (done.stdout, done.stderr)
    assert agent_on(alice, "n2") == renewed
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n1")


def test_a_head_without_network_that_had_an_agent_started_again_leaves_no_srun(alice: Alice) -> None:
    env = soon(fence_s=4) | {"MONARCH_HPC_HEAL__BACKOFF_S": "1"}
    done = alice.run("alloc", "dev", *FOUR, env=env)
    assert done.returncode == 0, done.stderr
    renew_second(alice)
    alice.lab.link_down("n1")
    wait_until("the heir", lambda: list(alice.shared.rglob("head.[2-9].json")), 60.0)
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n2")
    # Slurm ends its agent now; nobody tells an srun there of the end of the step on n2.
    alice.lab.link_up("n1")
    wait_until("the end of all on n1", partial(alice.lab.processes, "alice", "n1"), 120.0, accept=lambda left: not left)


@pytest.mark.parametrize("with_head", [True, False])
def test_of_two_halves_the_one_with_the_run_has_the_head(alice: Alice, with_head: bool) -> None:
    env = soon(fence_s=8)
    done = alice.run("alloc", "dev", *FOUR, env=env)
    assert done.returncode == 0, done.stderr
    halves = [("n1", "n2"), ("n3", "n4")]
    near, far = halves if with_head else halves[::-1]
    stop = write(alice, "stop", "")
    words = ("run", "-a", "dev", write(alice, "near.py", NEAR), stop, *near)
    going = alice.lab.popen(argv(*words), env=alice.environment(env), host=near[1])
    until_printed(going, "calls")
    for one in halves[0]:
        for other in halves[1]:
            alice.lab.cut(one, other)

    def left() -> list[str]:
        return [found for found in procs_left(alice) if found.startswith(far)]

    wait_until("the end of procs in the other half", left, 120.0, accept=lambda found: not found)
    command = ("run", "-a", "dev", write(alice, "probe.py", PROBE))

    def works(host: str) -> str:
        return alice.lab.run(argv(*command), env=alice.environment(env), host=host, timeout_s=120.0).stdout

    wait_until("a run there", partial(works, near[0]), 120.0, accept=lambda text: f"on {' '.join(near)}\n" in text)
    assert "on" not in works(far[0])
    for one in halves[0]:
        for other in halves[1]:
            alice.lab.join(one, other)
    everywhere = f"on {' '.join((*halves[0], *halves[1]))}\n"
    wait_until("a run on all hosts", partial(works, "login"), 240.0, accept=lambda text: everywhere in text)
    write(alice, "stop", "now")
    out, err = going.communicate(timeout=120)
    assert going.returncode == 0 and "over\n" in out, (out, err)
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n1")


def test_a_head_whose_hosts_have_followed_another_one_ends_none_of_their_agents(alice: Alice) -> None:
    """Slurm reaches them all the time, and would start other agents on them for the head that was cut off."""
    env = soon(fence_s=60)
    done = alice.run("alloc", "dev", *FOUR, env=env)
    assert done.returncode == 0, done.stderr
    others, stop = ("n2", "n3", "n4"), write(alice, "stop", "")
    words = ("run", "-a", "dev", write(alice, "near.py", NEAR), stop, *others)
    going = alice.lab.popen(argv(*words), env=alice.environment(env), host="n4")
    until_printed(going, "calls")
    for other in others:
        alice.lab.cut("n1", other)
    wait_until("the heir", lambda: list(alice.shared.rglob("head.[2-9].json")), 60.0)
    for other in others:
        alice.lab.join("n1", other)

    def seated() -> dict[str, bool]:
        return {host: is_head for host, (state, is_head) in seats(alice).items() if state == "alive"}

    # In time: for one that is fenced by itself this would take a minute.
    wait_until(
        "the return of n1",
        seated,
        50.0,
        accept=lambda seen: len(seen) == 4 and sum(seen.values()) == 1 and not seen["n1"],
    )
    logs = alice.run("logs", "dev", "--agents").stdout
    assert re.search(r"is fenced: the head of term [2-9] rules", logs), logs
    write(alice, "stop", "now")
    out, err = going.communicate(timeout=120)
    assert going.returncode == 0 and "over\n" in out, (out, err)
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stderr
    await_end(alice, "n1")


def _is_without_first(hosts: str) -> bool:
    return hosts.strip() == "n[2-4]"


def _ours(alice: Alice, host: str) -> list[str]:
    return [command for _, command in alice.lab.processes("alice", host) if "monarch_hpc.agent" in command]


def _sends_nothing(statistics: str) -> bool:
    """Whether nobody in slurmctld ("agents", to `sdiag`) has a message for a host."""
    counts = [line.split(":")[1] for line in statistics.splitlines() if line.startswith("Agent ")]
    return len(counts) == 3 and {int(count) for count in counts} == {0}
