"""Requests before they begin: estimates, reasons to wait, and starts with fewer hosts."""

from __future__ import annotations

import json
import re
import time

from tests.slurm.commands import Alice, alice, count_calls, release, write

__all__ = ["alice"]


def test_sizes_and_times_are_compared_before_the_request(alice: Alice) -> None:
    count = count_calls(alice, "sbatch", "squeue", "scontrol", "sinfo")
    alice.fill()
    done = alice.run("alloc", "-N", "4", "-t", "2h", "--estimate", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(one["hosts"], one["time_min"]) for one in told["estimates"]] == [
        ("4", 120), ("4", 60), ("4", 30), ("2", 120), ("1", 120)
    ]  # fmt: skip
    assert [one["node_hours"] for one in told["estimates"]] == [8.0, 4.0, 2.0, 4.0, 2.0]
    assert all(one["start"] and one["wait_s"] > 0 and one["refusal"] is None for one in told["estimates"]), told
    assert told["partition"] == {"name": "debug", "max_time": "UNLIMITED", "max_hosts": "UNLIMITED"}
    assert len(count.read_text().splitlines()) == 6
    refused = alice.run("alloc", "-N", "2", "-t", "4", "-p", "short", "--estimate")
    assert refused.returncode == 0
    lines = refused.stdout.splitlines()
    assert "Requested time limit is invalid" in lines[1] and "Requested" not in lines[2], refused.stdout
    assert "partition short: 2 hosts; a job gets at most unlimited hosts for 00:02:00" in refused.stderr
    assert set(alice.jobs()) == {"filler"} and not alice.shared.exists()


def test_one_request_is_tried_without_being_made(alice: Alice) -> None:
    done = alice.run("alloc", "-N", "2", "-t", "30", "--test-only")
    assert done.returncode == 0, done.stderr
    assert re.search(r"\(now\) on n\S+ in partition debug", done.stdout), done.stdout
    done = alice.run("alloc", "-p", "nope", "--test-only")
    assert done.returncode == 71
    assert "there are: debug, short, " in done.stderr
    assert alice.jobs() == {} and not alice.shared.exists()


def test_the_queue_tells_what_waits_and_why(alice: Alice) -> None:
    assert "nothing of yours waits" in alice.run("queue").stdout
    alice.fill()
    assert alice.run("alloc", "dev", "-N", "4", "-t", "30", "--bg").returncode == 0
    alice.slurm("sbatch", "-Q", "-H", "-N1", "-J", "a|b $(c)", "-o", "/dev/null", "--wrap", "true")
    waiting = {job["job_name"]: job for job in json.loads(alice.run("queue", "--json").stdout)["waiting"]}
    (ours,) = [job for job in waiting.values() if job["allocation"] == "dev"]
    assert (ours["hosts"], ours["limit"], ours["partition"]) == ("4", "30:00", "debug")
    assert time.strptime(ours["submitted"], "%Y-%m-%dT%H:%M:%S")
    assert waiting["a|b $(c)"]["reason"] == "JobHeldUser"
    shown = alice.run("queue").stdout
    assert "(a|b $(c))" in shown and "you hold it; let it go with: scontrol release" in shown


def test_it_begins_with_fewer_hosts_and_names_the_others(alice: Alice) -> None:
    # The second host's agents fail before they start.
    python = write(alice, "python", '#!/bin/sh\n[ "$(hostname)" != n2 ] || { echo "no such disk" >&2; exit 9; }\nexec '
                   f'{__import__("sys").executable} "$@"\n')  # fmt: skip
    alice.lab.run(["chmod", "755", python], check=True)
    env = {"MONARCH_HPC_AGENT__PYTHON": python, "MONARCH_HPC_SLURM__BOOTSTRAP_S": "30"}
    done = alice.run("alloc", "dev", "-N", "3", "-w", "n[1-3]", "--min-nodes", "2", "--json", env=env)
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["allocation"]
    assert ([host["name"] for host in made["hosts"]], made["missing"]) == (["n1", "n3"], ["n2"])
    assert "it begins without 1 host(s)" in done.stderr and "    no such disk" in done.stderr
    done = alice.run("exec", "--", "hostname")
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines()) == ["n1", "n3"]
    release(alice)
