"""Hooks around the agents, prologue and epilogue, and words before the agents' command."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import Alice, alice, release, wait_until_left, write

__all__ = ["alice"]

PROGRAM = """
import os
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Where(Actor):
    @endpoint
    def tell(self): return os.environ.get("FROM_PROLOGUE"), os.environ.get("IN_CONTAINER")

print(monarch_hpc.hosts().spawn_procs().spawn("where", Where).tell.call_one().get())
"""


def with_hooks(alice: Alice, **hooks: object) -> Alice:
    alice.env |= {f"MONARCH_HPC_AGENT__{name.upper()}": json.dumps(value) for name, value in hooks.items()}
    return alice


def test_hooks_run_around_the_agents_and_the_prefix_before_them(alice: Alice) -> None:
    left = alice.folder / "left"
    with_hooks(
        alice,
        prologue=["false || true", "export FROM_PROLOGUE=yes"],
        # Without pgrep, which a minimal Debian has not.
        epilogue=["sleep 2", f"{{ grep -ls monarch-agent /proc/[0-9]*/comm || true; }} | wc -l > {left}"],
        prefix=["env", "IN_CONTAINER=1"],
    )
    taken = alice.run("alloc", "dev", "-t", "30")
    assert taken.returncode == 0, taken.stderr
    done = alice.run("run", write(alice, "program.py", PROGRAM))
    assert done.stdout == "('yes', '1')\n", done.stderr
    release(alice)
    assert left.read_text() == "0\n", "it has ended by itself, when no agent was left"


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"prologue": ["true", "ls /nowhere", "export A=1"]}, "agent.prologue failed with status 2: ls /nowhere"),
        ({"prologue": ["sleep 600"], "hook_s": 1}, "agent.prologue took longer than 1 s (config key agent.hook_s)"),
    ],
    ids=["fails", "hangs"],
)
def test_a_prologue_that_fails_ends_the_job_and_is_shown(alice: Alice, hooks: dict[str, object], words: str) -> None:
    with_hooks(alice, **hooks)
    taken = alice.run("alloc", "dev", "-t", "30")
    assert taken.returncode == 72 and words in taken.stderr, taken.stderr
    wait_until("its end", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    wait_until_left(alice)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"epilogue": ["ls /nowhere"]}, "dev: agent.epilogue failed with status 2: ls /nowhere"),
        ({"epilogue": ["sleep 600"], "hook_s": 1}, "dev: agent.epilogue took longer than 1 s"),
    ],
    ids=["fails", "hangs"],
)
def test_an_epilogue_that_fails_is_shown_by_release(alice: Alice, hooks: dict[str, object], words: str) -> None:
    with_hooks(alice, **hooks)
    assert alice.run("alloc", "dev", "-t", "30").returncode == 0
    released = alice.run("release", "dev")
    assert released.returncode == 72 and words in released.stderr and "released dev" in released.stdout, released.stderr
    assert alice.jobs() == {}


def test_a_batch_job_whose_prologue_fails_does_not_start_its_program(alice: Alice) -> None:
    with_hooks(alice, prologue=["ls /nowhere"])
    script = write(alice, "program.py", "print('started')")
    job = alice.run("sbatch", "-t", "5", "--slurm", "--output=own.out", script, env={"PWD": str(alice.folder)})
    assert job.returncode == 0, job.stderr
    number = job.stdout.split()[1]
    shown = wait_until(
        "its end",
        lambda: alice.slurm("scontrol", "show", "job", "-o", number),
        120.0,
        accept=lambda text: "JobState=FAILED" in text,
    )
    assert " ExitCode=72:0 " in shown


@pytest.mark.skipif(
    shutil.which("apptainer") is None or not os.environ.get("IMAGE"), reason="needs apptainer, and an image in $IMAGE"
)
def test_agents_in_a_container(alice: Alice) -> None:
    with_hooks(alice, prefix=["apptainer", "exec", "--bind", str(alice.lab.home()), os.environ["IMAGE"]])
    assert alice.run("alloc", "dev", "-t", "30").returncode == 0
    assert alice.run("run", write(alice, "program.py", PROGRAM)).returncode == 0
    release(alice)
