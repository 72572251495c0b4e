"""Reservations of a real Slurm: who may use them, for how long, and when they begin."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from monarch_hpc.testing.slurmlab import SlurmLab
from tests.slurm.commands import Alice, alice, release

__all__ = ["alice"]


@pytest.fixture(autouse=True)
def reservations(lab: SlurmLab) -> Iterator[None]:
    """`class` of two hosts for ten minutes, `later` in two days, and `bobs`."""
    made = {
        "class": ("StartTime=now", "Duration=10", "Nodes=n1,n2", "Users=alice"),
        "later": ("StartTime=now+2days", "Duration=60", "Nodes=n3", "Users=alice"),
        "bobs": ("StartTime=now", "Duration=60", "Nodes=n3", "Users=bob"),
    }
    for name, words in made.items():
        lab.run(["scontrol", "create", "reservation", f"ReservationName={name}", *words], "root", check=True)
    yield
    for name in made:
        lab.run(["scontrol", "delete", f"ReservationName={name}"], "root", check=True)


@pytest.mark.parametrize("verb", ["alloc", "sbatch"])
def test_a_reservation_that_cannot_be_had_is_refused_before_sbatch(alice: Alice, verb: str) -> None:
    for flags, words in (
        (("--reservation", "nope"), ("nope: there is no such reservation; there are: ", "class from 20")),
        (("--reservation", "bobs"), ("bobs: it is for users bob, not for alice",)),
        (("--reservation", "class", "-N", "3"), ("class: it has 2 hosts, and 3 were requested",)),
    ):
        done = alice.run(verb, *flags, *(("--", "true") if verb == "sbatch" else ()))
        assert done.returncode == 65, done.stderr
        assert [word for word in words if word not in done.stderr] == []
    assert alice.jobs() == {} and not alice.shared.exists() and alice.status() == []


def test_the_time_limit_ends_before_the_reservation(alice: Alice) -> None:
    done = alice.run("alloc", "dev", "--reservation", "class", "-N", "2", "-t", "60")
    assert done.returncode == 0, done.stderr
    cut = re.search(r"the time limit is (\d) min instead of 60: reservation class ends at", done.stderr)
    assert cut is not None and 4 <= int(cut[1]) <= 8, done.stderr
    assert alice.slurm("squeue", "--me", "-h", "-o", "%N %l").strip() == f"n[1-2] {cut[1]}:00"
    done = alice.run("cost", "--json", env={"MONARCH_HPC_LIMITS__RESERVATION_IDLE_MIN": "0"})
    (meter,) = json.loads(done.stdout)["reservations"]
    assert (meter["name"], meter["num_hosts"], meter["num_used"], meter["idle_s"]) == ("class", 2, 2, 0)
    release(alice)


def test_a_batch_job_is_cut_too(alice: Alice) -> None:
    done = alice.run("sbatch", "--reservation", "class", "-t", "60", "--", "true")
    assert done.returncode == 0, done.stderr
    cut = re.search(r"the time limit is (\d) min instead of 60: reservation class ends at", done.stderr)
    assert cut is not None, done.stderr
    job = done.stdout.split()[1]
    shown = alice.slurm("scontrol", "show", "job", "-o", job)
    assert f" TimeLimit=00:0{cut[1]}:00 " in shown and " Reservation=class " in shown
    alice.slurm("scancel", job)


def test_before_the_window_the_queue_says_when_it_begins(alice: Alice) -> None:
    with alice.start("alloc", "dev", "--reservation", "later") as process:
        assert process.stderr is not None
        seen = ""
        while "queued" not in seen:
            line = process.stderr.readline()
            assert line, seen
            seen += line
        process.terminate()
        process.communicate(timeout=180)
    assert re.search(r"note +reservation later begins at \d{4}-\d\d-\d\d \d\d:\d\d; the job waits until then", seen), (
        seen
    )
    assert re.search(
        r"queued .*Reservation: waiting for its reservation to begin, at \d{4}-\d\d-\d\d \d\d:\d\d", seen
    ), seen
    assert alice.jobs() == {}
