"""An allocation whose job Slurm starts again: requeued while it is awaited or used, and when its first host is lost."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import SLEEPER, Alice, alice, until_printed, write

__all__ = ["alice"]

AGAIN_S = 120.0
"""Slurm holds a requeued job back until its credential has expired: in the lab for six seconds."""


@pytest.fixture
def requeued(alice: Alice) -> Iterator[Alice]:
    """Alice with an allocation `dev` of two hosts that Slurm may requeue."""
    done = alice.run("alloc", "dev", "-N", "2", "-t", "30", "--slurm", "--requeue")
    assert done.returncode == 0, done.stderr
    yield alice
    done = alice.run("release", "--all")
    assert done.returncode == 0, done.stderr
    assert alice.jobs() == {} and alice.status() == []


def control(alice: Alice, verb: str) -> None:
    alice.slurm("scontrol", verb, str(alice.status()[0]["job_id"]))


def state(alice: Alice) -> str:
    return str(alice.status("dev")[0]["state"])


def attempts(alice: Alice) -> list[Path]:
    return sorted(alice.shared.glob("*/attempts/*"))


def test_a_requeued_allocation_is_used_again(requeued: Alice) -> None:
    program = write(requeued, "sleeper.py", SLEEPER + "sleepers.sleep.call().get()")
    running = requeued.start("run", "-a", "dev", program)
    until_printed(running, "ready")
    control(requeued, "requeuehold")
    _, err = running.communicate(timeout=120)
    assert running.returncode == 72 and "Slurm has requeued its job" in err, err

    held = "queued again after a requeue: job requeued in held state: "
    wait_until("the queue", lambda: state(requeued), AGAIN_S, accept=lambda text: text.startswith(held))
    done = requeued.run("run", "-a", "dev", program)
    assert done.returncode == 72 and "Slurm has requeued its job" in done.stderr, done.stderr

    control(requeued, "release")
    wait_until("the second attempt", lambda: state(requeued), AGAIN_S, accept=lambda text: text == "ready")
    (found,) = requeued.status("dev")
    assert (found["restarts"], found["missing"]) == (1, [])
    assert "ready (requeued 1×)" in requeued.run("status").stdout
    done = requeued.run("run", "-a", "dev", write(requeued, "ready.py", SLEEPER))
    assert done.returncode == 0 and "ready" in done.stdout, done.stderr
    # Nothing of one attempt is another's, and both have said in the same file how they fared.
    first, second = attempts(requeued)
    assert {path.name for path in first.iterdir()} >= {"granted.json", "head.claim", "ready.json", "ended.json"}
    # Not at once: the head may be writing one of them, beside its place.
    wait_until(
        "the files of an attempt that lives",
        lambda: sorted(path.name for path in second.iterdir()),
        accept=["changes.jsonl", "granted.json", "head.1.json", "head.claim", "hosts", "ready.json"].__eq__,
    )
    ids = {json.loads((path / "ready.json").read_text())["allocation"] for path in (first, second)}
    assert len(ids) == 2


def test_a_requeue_while_agents_are_awaited_is_waited_for(alice: Alice) -> None:
    # The agents' interpreter of the first attempt takes for ever.
    python = alice.folder / "python"
    text = f'#!/bin/sh\n[ -n "$SLURM_RESTART_COUNT" ] || exec sleep 600\nexec {sys.executable} "$@"\n'
    alice.lab.run(["sh", "-c", f"mkdir -p {alice.folder}; cat > {python}; chmod 755 {python}"], stdin=text, check=True)
    with alice.start(
        "alloc", "dev", "-N", "2", "--slurm", "--requeue", env={"MONARCH_HPC_AGENT__PYTHON": str(python)}
    ) as process:
        assert process.stderr is not None
        output = ""
        while "granted" not in output:
            output += process.stderr.readline()
        control(alice, "requeue")
        _, rest = process.communicate(timeout=AGAIN_S)
    assert process.returncode == 0, rest
    assert "goes back to the queue" in rest and "agents    2/2" in rest
    assert alice.run("release", "dev").returncode == 0


def test_a_lost_first_host_brings_the_job_back_elsewhere(alice: Alice) -> None:
    # Not --no-kill: then the job would go on without its batch script.
    flags = ("--slurm", "--requeue", "--slurm", "--no-kill=off")
    assert alice.run("alloc", "dev", "-N", "2", *flags).returncode == 0
    first = alice.slurm("squeue", "--me", "-h", "-o", "%B").strip()
    alice.lab.run(["scontrol", "update", f"NodeName={first}", "State=DOWN", "Reason=test"], user="root", check=True)
    wait_until("the second attempt", lambda: alice.status("dev")[0]["restarts"], AGAIN_S, accept=lambda num: num == 1)
    wait_until("ready", lambda: state(alice), AGAIN_S, accept=lambda text: text == "ready")
    assert alice.run("run", "-a", "dev", write(alice, "ready.py", SLEEPER)).returncode == 0
    assert alice.run("release", "dev").returncode == 0
