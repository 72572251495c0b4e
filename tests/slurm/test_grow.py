"""A living allocation gets further hosts as one more Slurm job; all are used, lost and given back together."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Sequence
from functools import partial
from operator import eq

from monarch_hpc.testing import wait_until
from tests.slurm.commands import (
    HOLD,
    LOSES_ITS_SECOND_HOST,
    Alice,
    alice,
    declare_down,
    until_printed,
    wait_until_left,
    write,
)
from tests.slurm.test_kill_alloc import KILLING_SBATCH, with_sbatch
from tests.slurm.test_returns import agent_on

__all__ = ["alice"]

_PATIENCE_S = 120.0

WHERE = """
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Where(Actor):
    @endpoint
    def host(self): return monarch_hpc.context().proc.host

found = monarch_hpc.hosts().spawn_procs().spawn("where", Where).host.call().get().values()
print("hosts", *sorted(found), flush=True)
"""

GROWING = """
import sys
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorDied, endpoint

monarch_hpc.actor.unhandled_fault_hook = lambda failure: None

class Adder(Actor):
    @endpoint
    def host(self): return monarch_hpc.context().proc.host
    @endpoint
    def add(self, one, two): return one + two
    @endpoint
    def sleep(self): __import__("time").sleep(600)

before = monarch_hpc.hosts()
old = before.spawn_procs().spawn("old", Adder)
print("before", *old.host.call().get().values(), flush=True)
grown = before.grow(1, timeout=300, slurm_args=["--time=20"])
assert len(grown) == len(before) + 1 == len(monarch_hpc.hosts()), (grown, monarch_hpc.hosts())
actors = grown.spawn_procs().spawn("both", Adder)
print("after", *actors.host.call().get().values(), flush=True)
assert set(actors.add.call(1, 2).get().values()) == {3}
try:
    actors.slice(hosts=len(before)).sleep.call_one().get()
except ActorDied as error:
    print("died", error.kind.value, error.cause, flush=True)
print("old", old.add.call(2, 2).get().values(), flush=True)
print("left", actors.slice(hosts=slice(0, len(before))).add.call(5, 2).get().values(), flush=True)
"""


REPLACING = (
    LOSES_ITS_SECOND_HOST
    + """\
except ActorDied as error:
    print("died", error.kind.value, flush=True)
try:
    healed = procs.heal(("respawn", "spares", "replace"), timeout=240)
    print("healed", *where.host.call().get().values(), "moved", healed.moved, flush=True)
except MeshDied as error:
    print("refused", error, flush=True)
"""
)


def jobs_of(alice: Alice) -> list[dict[str, object]]:
    (shown,) = alice.status("dev")
    assert isinstance(shown["jobs"], list)
    return shown["jobs"]


def given_back(alice: Alice) -> None:
    done = alice.run("release", "dev")
    assert done.returncode == 0, done.stdout + done.stderr
    assert alice.jobs() == {}
    wait_until_left(alice)


def test_an_allocation_grows_by_a_job_and_outlives_it(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2", "-t", "30").returncode == 0
    running = alice.start("run", write(alice, "growing.py", GROWING))
    after = until_printed(running, "after ")
    (job,) = jobs_of(alice)
    assert (job["state"], job["hosts"], job["first_rank"]) == ("joined", "1/1", 2)
    assert re.search(rf"  \+ +{job['job_id']} +joined +1/1", alice.run("status", "dev").stdout)
    # A program that starts later has all three hosts.
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0, done.stdout + done.stderr
    (hosts,) = re.findall(r"^hosts (.*)$", done.stdout, re.M)
    assert len(set(hosts.split())) == 3, done.stdout + str(after)
    alice.slurm("scancel", str(job["job_id"]))
    out, err = running.communicate(timeout=_PATIENCE_S)
    assert running.returncode == 0, out + err
    assert "died cancelled" in out and f"job {job['job_id']}" in out, out + err
    assert "old [4, 4]" in out and "left [7, 7]" in out, out + err
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0, done.stdout + done.stderr
    (hosts,) = re.findall(r"^hosts (.*)$", done.stdout, re.M)
    assert len(hosts.split()) == 2, done.stdout
    wait_until("the end of its record", lambda: jobs_of(alice), _PATIENCE_S, accept=[].__eq__)
    given_back(alice)


def test_the_command_grows_it_and_release_gives_all_back(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-t", "30").returncode == 0
    for number in (1, 2):
        done = alice.run("alloc", "--grow", "dev", "-N", "1", "-t", "20", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        job = json.loads(done.stdout)["job"]
        assert (job["first_rank"], job["state"], len(job["hosts"])) == (number, "ready", 1)
    done = alice.run("run", write(alice, "where.py", WHERE))
    (hosts,) = re.findall(r"^hosts (.*)$", done.stdout, re.M)
    assert len(set(hosts.split())) == 3, done.stdout + done.stderr
    assert len(jobs_of(alice)) == 2 and len(alice.jobs()) == 3
    logs = json.loads(alice.run("logs", "dev", "--agents", "--json").stdout)["logs"]
    assert [log["label"] for log in logs] == ["agents", *(f"agents of job {job['job_id']}" for job in jobs_of(alice))]
    assert len(json.loads(alice.run("cost", "dev", "--json").stdout)["allocations"]) == 3
    refused = alice.run("shrink", "dev", "-N", "1")
    assert refused.returncode != 0 and "scancel JOB" in refused.stderr + refused.stdout
    given_back(alice)


def test_the_time_limit_of_a_further_job_is_that_of_its_hosts(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-t", "30").returncode == 0
    assert alice.run("alloc", "--grow", "dev", "-t", "20").returncode == 0
    (job,) = jobs_of(alice)
    end = ["scontrol", "update", f"JobId={job['job_id']}", "EndTime=now+3"]
    alice.lab.run(end, user="root", check=True)  # Slurm looks for such jobs twice a minute
    wait_until("its loss", lambda: lost_kinds(alice), _PATIENCE_S, accept=["time-limit"].__eq__)
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0 and len(re.findall(r"^hosts \w+$", done.stdout, re.M)) == 1, done.stdout + done.stderr
    given_back(alice)


def lost_kinds(alice: Alice) -> list[str]:
    document = json.loads(alice.run("status", "--changes", "dev", "--json").stdout)
    return [change["kind"] for change in document["changes"] if change["what"] == "lost"]


OUTLIVING = """
import sys
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, ActorDied, endpoint

monarch_hpc.actor.unhandled_fault_hook = lambda failure: None

class Adder(Actor):
    @endpoint
    def add(self, one, two): return one + two
    @endpoint
    def sleep(self): __import__("time").sleep(600)

hosts = monarch_hpc.hosts()
num_first = int(sys.argv[1])
adders = hosts.spawn_procs().spawn("adders", Adder)
print("ready", *(entry.name for entry in hosts.entries), flush=True)
for rank in range(num_first):
    try:
        adders.slice(hosts=rank).sleep.call_one().get()
    except ActorDied as error:
        print("died", rank, error.kind.value, error.cause, flush=True)
rest = slice(num_first, len(hosts))
print("left", *adders.slice(hosts=rest).add.call(5, 2).get(60).values(), flush=True)
fresh = hosts.slice(hosts=rest).spawn_procs().spawn("fresh", Adder)
print("fresh", *fresh.add.call(1, 2).get(60).values(), flush=True)
"""
"""Runs on while the hosts of the first job end, whose number it is given."""


def first_job(alice: Alice) -> str:
    (shown,) = alice.status("dev")
    return str(shown["job_id"])


def outlives(alice: Alice, first: list[str], rest: list[str], end: Sequence[str], kind: str) -> None:
    """End the first job, with the head, by a command, while a program runs; check all that goes on after it."""
    num_first = len(first)
    running = alice.start("run", write(alice, "outliving.py", OUTLIVING), str(num_first))
    until_printed(running, "ready " + " ".join(first + rest))
    job = first_job(alice)
    alice.lab.run([*end, job] if end[0] == "scancel" else [*end[:2], f"JobId={job}", *end[2:]], user="root", check=True)
    out, err = running.communicate(timeout=2 * _PATIENCE_S)
    assert running.returncode == 0, out + err
    died = re.findall(r"^died (\d+) (\S+) .*$", out, re.M)
    assert died == [(str(rank), kind) for rank in range(num_first)], out + err
    assert f"left {' '.join('7' for _ in rest)}\n" in out and f"fresh {' '.join('3' for _ in rest)}\n" in out, out + err
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0 and f"hosts {' '.join(rest)}\n" in done.stdout, done.stdout + done.stderr
    wait_until(
        "the end of the first job", lambda: alice.status("dev"), _PATIENCE_S, accept=lambda shown: shown[0]["parted"]
    )
    (shown,) = alice.status("dev")
    assert str(shown["state"]).startswith(f"ready (job {job} has ended: "), shown["state"]
    lost = shown["lost"]
    assert isinstance(lost, dict) and list(lost) == first and all(f"job {job}" in why for why in lost.values()), lost
    assert set(lost_kinds(alice)) == {kind}


def test_the_allocation_outlives_its_first_job(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2", "-w", "n1,n2", "-t", "30").returncode == 0
    assert alice.run("alloc", "--grow", "dev", "-w", "n3", "-t", "20").returncode == 0
    outlives(alice, ["n1", "n2"], ["n3"], ["scancel"], "cancelled")
    # It grows again, and its next head ends in the same way.
    assert alice.run("alloc", "--grow", "dev", "-w", "n4", "-t", "20").returncode == 0
    (second, third) = (str(job["job_id"]) for job in jobs_of(alice))
    refused = alice.run("extend", "dev", "-1m")
    assert f"'scontrol update JobId={second} TimeLimit=-1'" in refused.stderr, (refused.stdout, refused.stderr)
    alice.slurm("scancel", second)
    wait_until("the next heir", lambda: heads(alice).get("n4"), _PATIENCE_S, accept=lambda role: role == "head")
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0 and "hosts n4\n" in done.stdout, done.stdout + done.stderr
    done = alice.run("release", "dev")
    assert done.returncode == 0 and third in done.stdout, done.stdout + done.stderr
    assert alice.jobs() == {}
    wait_until_left(alice)


def test_the_time_limit_of_the_first_job_is_that_of_its_hosts(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-w", "n1", "-t", "30").returncode == 0
    assert alice.run("alloc", "--grow", "dev", "-w", "n2,n3", "-N", "2", "-t", "20").returncode == 0
    outlives(alice, ["n1"], ["n2", "n3"], ["scontrol", "update", "EndTime=now+3"], "time-limit")
    given_back(alice)


def test_a_first_job_whose_only_host_has_no_power_is_outlived(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-w", "n1", "-t", "30").returncode == 0
    assert alice.run("alloc", "--grow", "dev", "-w", "n2", "-t", "20").returncode == 0
    job = first_job(alice)
    alice.lab.kill_host("n1")
    declare_down(alice, "n1")
    wait_until("the heir", lambda: heads(alice).get("n2"), _PATIENCE_S, accept=lambda role: role == "head")
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0 and "hosts n2\n" in done.stdout, done.stdout + done.stderr
    (shown,) = alice.status("dev")
    assert str(shown["state"]).startswith(f"ready (job {job} has ended: "), shown["state"]
    given_back(alice)


def test_an_allocation_of_four_jobs_loses_one_after_the_other(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-w", "n1", "-t", "30").returncode == 0
    for host in ("n2", "n3", "n4"):
        assert alice.run("alloc", "--grow", "dev", "-w", host, "-t", "20").returncode == 0
    jobs = [first_job(alice), *(str(job["job_id"]) for job in jobs_of(alice))]
    alice.slurm("scancel", jobs[2])  # not the head's
    for number, heir in ((0, "n2"), (1, "n4")):
        alice.slurm("scancel", jobs[number])
        wait_until("the heir", partial(head_of, alice), _PATIENCE_S, accept=partial(eq, heir))
        done = alice.run("run", write(alice, "where.py", WHERE))
        assert done.returncode == 0 and heir in done.stdout, done.stdout + done.stderr
    alice.slurm("scancel", "--me")  # all at once: nobody stays
    wait_until("the end of all jobs", alice.jobs, _PATIENCE_S, accept=lambda left: not left)
    wait_until("the end of the allocation", lambda: alice.status(), _PATIENCE_S, accept=[].__eq__)
    wait_until_left(alice)


def test_hosts_of_both_jobs_elect_an_heir(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2", "-w", "n1,n2", "-t", "30").returncode == 0
    done = alice.run("alloc", "--grow", "dev", "-w", "n3", "-t", "20")
    assert done.returncode == 0, done.stdout + done.stderr
    alice.lab.kill_host("n1")  # with the head: two of three voices are left, one of them of the further job
    wait_until("the heir", lambda: list(alice.shared.rglob("head.[2-9].json")), _PATIENCE_S)
    wait_until(
        "its hosts", lambda: heads(alice), _PATIENCE_S, accept={"n1": "lost", "n2": "head", "n3": "alive"}.__eq__
    )
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0 and "hosts n2 n3\n" in done.stdout, done.stdout + done.stderr
    given_back(alice)


def test_a_killed_agent_of_a_further_job_is_started_again_there(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-w", "n1", "-t", "30").returncode == 0
    assert alice.run("alloc", "--grow", "dev", "-N", "2", "-w", "n2,n3", "-t", "20").returncode == 0
    # The last agent of a job ends its step, and with that the job.
    before = agent_on(alice, "n3")
    os.kill(before, signal.SIGKILL)
    wait_until("its successor", lambda: agent_on(alice, "n3"), _PATIENCE_S, accept=lambda pid: pid not in (0, before))
    wait_until(
        "it to join", lambda: heads(alice), _PATIENCE_S, accept={"n1": "head", "n2": "alive", "n3": "alive"}.__eq__
    )
    (job,) = jobs_of(alice)
    (shown,) = alice.status("dev")
    assert isinstance(shown["hosts"], list)
    assert [host["job_id"] for host in shown["hosts"] if host["name"] == "n3"] == [job["job_id"]]
    done = alice.run("run", write(alice, "where.py", WHERE))
    assert done.returncode == 0 and "hosts n1 n2 n3\n" in done.stdout, done.stdout + done.stderr
    given_back(alice)


def test_a_host_without_power_is_replaced_by_another_of_slurm(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "2", "-w", "n1,n2", "-t", "30").returncode == 0
    running = alice.start("run", write(alice, "replacing.py", REPLACING))
    until_printed(running, "ready n1 n2")
    alice.lab.kill_host("n2")
    out, err = running.communicate(timeout=2 * _PATIENCE_S)
    assert running.returncode == 0, out + err
    moved = re.search(r"healed n1 (n[34]) moved {1: '(n[34])'}", out)
    assert moved is not None and moved[1] == moved[2], out + err
    (job,) = jobs_of(alice)
    assert job["state"] == "joined"
    given_back(alice)


def test_no_host_is_requested_beyond_the_limit(alice: Alice) -> None:
    none = {"MONARCH_HPC_HEAL__PER_HOUR": "0"}
    assert alice.run("alloc", "dev", "-N", "2", "-w", "n1,n2", "-t", "30", env=none).returncode == 0
    running = alice.start("run", write(alice, "replacing.py", REPLACING))
    until_printed(running, "ready n1 n2")
    alice.lab.run(["scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test"], user="root", check=True)
    out, err = running.communicate(timeout=2 * _PATIENCE_S)
    assert running.returncode == 0, out + err
    assert "refused" in out and "config key heal.per_hour" in out, out + err
    assert len(alice.jobs()) == 1
    given_back(alice)


def head_of(alice: Alice) -> str:
    return next((host for host, state in heads(alice).items() if state == "head"), "")


def heads(alice: Alice) -> dict[str, str]:
    (shown,) = alice.status("dev")
    assert isinstance(shown["hosts"], list)
    return {host["name"]: "head" if host["head"] else host["state"] for host in shown["hosts"]}


def test_a_client_killed_before_it_has_the_job_id_leaks_no_job(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-t", "30").returncode == 0
    done = alice.run("alloc", "--grow", "dev", "-N", "1", "--bg", env={"PATH": with_sbatch(alice, KILLING_SBATCH)})
    assert done.returncode < 0 or done.returncode == 137, done.stdout + done.stderr
    assert len(alice.jobs()) == 2
    given_back(alice)


def test_a_job_whose_allocation_has_ended_is_cancelled(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "3", "-t", "30").returncode == 0
    alice.slurm("sbatch", "-Q", "-N1", "--exclusive", "-J", "filler", "-o", "/dev/null", "--wrap", HOLD)
    wait_until("all hosts to be taken", alice.jobs, accept=lambda jobs: jobs.get("filler") == "RUNNING")
    done = alice.run("alloc", "--grow", "dev", "--bg")
    assert done.returncode == 0, done.stderr
    (shown,) = alice.status("dev")
    (job,) = jobs_of(alice)
    assert str(job["state"]).startswith("queued")
    alice.slurm("scancel", str(shown["job_id"]))
    wait_until(
        "its end", lambda: (alice.run("status"), alice.jobs())[1], _PATIENCE_S, accept=lambda jobs: len(jobs) == 1
    )
    alice.free()
    wait_until_left(alice)
