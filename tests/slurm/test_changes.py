"""Allocations that are changed while they live: their time, and the number of their hosts."""

from __future__ import annotations

import json
from pathlib import Path

from tests.slurm.commands import Alice, alice, count_calls, release, until_printed, wait_until_left

__all__ = ["alice"]


def test_a_user_shortens_a_job_and_is_told_why_it_cannot_be_lengthened(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "1", "-t", "30").returncode == 0
    before = alice.status()[0]["end"]
    done = alice.run("extend", "dev", "-10m", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["end_before"] == before and told["end"] < told["end_before"]
    assert alice.status()[0]["end"] == told["end"]  # no cached answer of squeue
    count = count_calls(alice, "squeue", "scontrol")
    # However long the commands take to start.
    alice.env |= {"MONARCH_HPC_SLURM__POLL_MIN_S": "600", "MONARCH_HPC_SLURM__POLL_MAX_S": "600"}
    short = alice.run("run", "-a", "dev", "--needs", "25m", "--", "touch", "started")
    assert short.returncode == 75
    assert "min are left, and the run needs 25 min; it was not started" in short.stderr
    assert not (alice.lab.home() / "started").exists()
    assert alice.run("run", "--needs", "15m", "--", "true").returncode == 0
    assert len(count.read_text().splitlines()) <= 1  # the runs share one answer, or have that of status
    refused = alice.run("extend", "+30m")
    assert refused.returncode == 71
    assert "Access/permission denied" in refused.stderr
    assert "operators alone may lengthen it: ask them for 'scontrol update JobId=" in refused.stderr
    assert "TimeLimit=+30'" in refused.stderr


def test_a_job_that_waits_is_changed_both_ways(alice: Alice) -> None:
    alice.fill()
    assert alice.run("alloc", "dev", "-N", "1", "-t", "30", "--bg").returncode == 0
    for change, limit in (("+1h", "01:30:00"), ("-10m", "01:20:00"), ("2h", "02:00:00")):
        told = json.loads(alice.run("extend", change, "--json").stdout)
        assert told["limit"] == limit, told


def test_hosts_are_given_back_one_by_one(alice: Alice) -> None:
    assert alice.run("alloc", "dev", "-N", "4", "-t", "30").returncode == 0
    held = alice.start("exec", "--host", "n4", "--", "sh", "-c", "echo begun; read line < /dev/zero")
    until_printed(held, "begun")
    done = alice.run("shrink", "dev", "-N", "1", "--json")
    assert done.returncode == 72
    assert "1 on n4" in json.loads(done.stdout)["error"]["message"]
    # The host with the proc stays, although it is the last one.
    done = alice.run("shrink", "dev", "-N", "2", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["kept"], told["freed"]) == (["n1", "n4"], ["n2", "n3"])
    assert told["processes_left"] == {"n2": 0, "n3": 0}
    wait_until_left(alice, "n2", "n3")
    assert held.poll() is None
    held.terminate()
    held.communicate(timeout=180)
    (shown,) = alice.status()
    assert (shown["state"], shown["missing"]) == ("ready", [])
    assert alice.slurm("squeue", "--me", "-h", "-o", "%N").strip() == "n[1,4]"
    done = alice.run("exec", "--", "hostname")
    assert sorted(line.partition("] ")[2] for line in done.stdout.splitlines()) == ["n1", "n4"]
    assert not list(Path.cwd().glob("slurm_job_*")) and not list(alice.lab.home().glob("slurm_job_*"))
    release(alice)
