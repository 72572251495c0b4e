"""Programs as batch jobs of their own: submitted by us or by hand, started again, and as arrays."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from monarch_hpc.testing import wait_until
from tests.slurm.commands import HOSTS, Alice, alice, announce_end, put_on_path, write

__all__ = ["alice"]

ARGUMENTS = ("it's", "$(touch x)", "two\nlines", "", '"q" `y` \\')
ECHO = """
import json, sys
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Asked(Actor):
    @endpoint
    def where(self): return monarch_hpc.context().proc.host

asked = monarch_hpc.hosts().spawn_procs().spawn("asked", Asked)
print(json.dumps([sorted(asked.where.call().get().values()), sys.argv[1:]]), flush=True)
sys.exit(3)
"""
AGAIN = """
import os, threading, time
import monarch_hpc

told = threading.Event()

@monarch_hpc.on_deadline
def hold(seconds_left, cause):
    open("noticed", "w").close()
    told.wait(seconds_left)

monarch_hpc.hosts().spawn_procs()
before = int(os.environ.get("SLURM_RESTART_COUNT", 0)) + int(os.environ.get("MONARCH_HPC_CHAINED", 0))
print("start", before, flush=True)
if before < 1:
    print("next", monarch_hpc.requeue() == int(os.environ["SLURM_JOB_ID"]), flush=True)
    told.set()
    time.sleep(600)
try:
    monarch_hpc.requeue()
except monarch_hpc.AllocationError as error:
    print(error, flush=True)
"""

LATE = """#!/bin/sh
/usr/bin/{command} "$@"
status=$?
if [ {command} = scancel ] || [ "$1 $status" = "requeue 0" ]; then
    until [ -e noticed ]; do sleep 0.05; done
fi
exit $status
"""
"""A command of Slurm's that ends the job it runs in, and returns when the program has notice of that."""

LOOP = """
import os, time
import monarch_hpc

@monarch_hpc.on_deadline
def save(seconds_left, cause): print("saved", cause, flush=True)

monarch_hpc.hosts()
print("start", os.environ.get("SLURM_RESTART_COUNT", 0), flush=True)
time.sleep(0 if "SLURM_RESTART_COUNT" in os.environ else 600)
"""


TASK = """
import os
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Task(Actor):
    @endpoint
    def index(self): return os.environ["SLURM_ARRAY_TASK_ID"]

found = monarch_hpc.hosts().spawn_procs(per_host={"procs": 2}).spawn("task", Task).index.call().get()
own, num = os.environ["SLURM_ARRAY_TASK_ID"], os.environ["SLURM_ARRAY_TASK_COUNT"]
print(f"task {own} of {num}:", *found.values(), flush=True)
"""
NUM_TASKS = int(os.environ.get("ARRAY_TASKS", 4))
"""64 on two hosts were run by hand; each costs two seconds of processor time."""


@pytest.fixture
def folder(alice: Alice) -> Path:
    """A folder of alice's whose name must be quoted."""
    write(alice, "a b $HOME/echo it.py", ECHO)
    write(alice, "a b $HOME/again.py", AGAIN)
    write(alice, "a b $HOME/loop.py", LOOP)
    write(alice, "a b $HOME/task.py", TASK)
    return alice.folder / "a b $HOME"


def submit(alice: Alice, folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "monarch_hpc.cli", "sbatch", *arguments]
    done = alice.lab.run(command, env=alice.environment({}), folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ended(alice: Alice, job: str, exit_code: int, timeout_s: float = 120.0) -> None:
    wait_until(
        f"the end of job {job}",
        lambda: alice.slurm("scontrol", "show", "job", "-o", job),
        timeout_s,
        accept=re.compile(rf"JobState=(COMPLETED|FAILED) .* ExitCode={exit_code}:0 ").search,
    )


def nothing_left(alice: Alice) -> None:
    def left() -> list[str]:
        return [words for host in HOSTS for _, words in alice.lab.processes("alice", host)]

    wait_until("no process", left, 120.0, accept=lambda found: not found)
    assert list(alice.shared.iterdir()) == []


def test_a_program_runs_in_its_own_job_with_its_arguments(alice: Alice, folder: Path) -> None:
    flags = ("-N", "2", "-t", "5", "--slurm", "--nodelist=n[1-2]", "--slurm", "--comment=$(touch y) `z`")
    job = submit(alice, folder, *flags, "echo it.py", *ARGUMENTS).split()[1]
    ended(alice, job, 3)
    (printed,) = folder.glob("*.out")
    assert printed.name == f"echo it-{job}.out"
    assert json.loads(printed.read_text()) == [["n1", "n2"], list(ARGUMENTS)]
    assert not {"x", "y"} & {path.name for path in folder.iterdir()}
    nothing_left(alice)


def test_its_script_can_be_submitted_by_hand(alice: Alice, folder: Path) -> None:
    submit(alice, folder, "-t", "5", "--output-script", "my job.sh", "--drop", "exclusive", "echo it.py", "by hand")
    script = (folder / "my job.sh").read_text()
    assert script == submit(alice, folder, "-t", "5", "--dry-run", "--drop", "exclusive", "echo it.py", "by hand")
    assert "#SBATCH --exclusive" not in script
    job = alice.slurm("sbatch", "--parsable", str(folder / "my job.sh")).strip()
    ended(alice, job, 3)
    (printed,) = folder.glob("*.out")
    assert json.loads(printed.read_text())[1] == ["by hand"]


@pytest.mark.parametrize("refused", [False, True], ids=["requeued", "as a next job"])
def test_a_program_starts_again(alice: Alice, folder: Path, refused: bool) -> None:
    put_on_path(alice, {command: LATE.format(command=command) for command in ("scontrol", "scancel")})
    flags = ("--slurm", "--no-requeue") if refused else ()
    flags = ("-t", "5", "--requeue-loop", "--max-requeues", "1", *flags)
    job = submit(alice, folder, *flags, "again.py").split()[1]

    def outputs() -> list[str]:
        """By number of the job: 99 comes before 100."""
        paths = {int(path.stem.partition("-")[2]): path for path in folder.glob("again-*.out")}
        return [paths[number].read_text() for number in sorted(paths)]

    texts = wait_until(
        "the second start",
        outputs,
        120.0,
        accept=lambda texts: any("as often as --max-requeues allows" in text for text in texts),
    )
    printed = "".join(texts)
    assert len(texts) == 1 + refused
    assert re.findall(r"start \d|next \w+", printed) == ["start 0", f"next {not refused}", "start 1"], printed
    wait_until("the end", alice.jobs, 120.0, accept=lambda jobs: not jobs)
    assert job in printed
    nothing_left(alice)


def test_at_its_time_limit_a_loop_saves_and_starts_again(alice: Alice, folder: Path) -> None:
    job = submit(alice, folder, "-t", "5", "--requeue-loop", "loop.py").split()[1]

    def printed() -> str:
        return "".join(path.read_text() for path in folder.glob("loop-*.out"))

    wait_until("the program", printed, 120.0, accept=lambda text: "start 0" in text)
    (directory,) = alice.shared.iterdir()
    announce_end(alice, directory, 100)
    ended(alice, job, 0)
    assert re.findall(r"^(?:start \d|saved .*)$", printed(), re.MULTILINE) == ["start 0", "saved time limit", "start 1"]
    nothing_left(alice)


def scratch(alice: Alice) -> list[str]:
    """What lies in the folders of two hosts that belong to no user."""
    return [
        alice.lab.run(["ls", "-A", "/dev/shm", "/tmp"], host=host, user="root", check=True).stdout for host in HOSTS[:2]
    ]


def test_the_tasks_of_an_array_do_not_meet(alice: Alice, folder: Path) -> None:
    before = scratch(alice)
    # Each has agents, sockets, shared memory and a directory; several are on one host at a time.
    flags = ("--array", f"0-{NUM_TASKS - 1}", "-t", "2", "-p", "short", "--drop", "exclusive")
    submit(alice, folder, *flags, "task.py")
    wait_until("the tasks", alice.jobs, 60.0 + 4 * NUM_TASKS, accept=lambda jobs: not jobs)
    printed = sorted(path.read_text() for path in folder.glob("task-*.out"))
    assert printed == sorted(f"task {index} of {NUM_TASKS}: {index} {index}\n" for index in range(NUM_TASKS))
    nothing_left(alice)
    assert scratch(alice) == before
