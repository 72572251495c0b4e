"""Campaigns that use allocations for long: thousands of runs, requests to Slurm, array tasks, ends of jobs."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.campaigns.user import CALLER, PATIENCE_S, User, Verdict, nothing_left, open_lab, release
from monarch_hpc.testing import wait_until

__all__ = ["calls", "ends", "runs", "tasks"]

# Commands that run at the same time where none of them is measured.
_LANES = 4
_MEASURED = 100
_NUM_LOOKS = 6
_NUM_SPARE_FDS = 4
"""Of a run that is about to begin or to end."""

_SAVER = """
import os, sys, time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Saver(Actor):
    @endpoint
    def save(self):
        return os.environ["SLURM_JOB_ID"]

procs = monarch_hpc.hosts().spawn_procs()
savers = procs.spawn("saver", Saver)
savers.save.call().get()
start = os.environ.get("SLURM_RESTART_COUNT", "0")

@monarch_hpc.on_deadline
def save(seconds_left, cause):
    (job,) = set(savers.save.call().get().values())
    print("saved", start, job, cause, flush=True)

print("armed", start, flush=True)
if start != "0":
    sys.exit()
while True:
    time.sleep(1)
"""

_TASK = """
import os
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Task(Actor):
    @endpoint
    def place(self):
        return os.environ["SLURM_ARRAY_TASK_ID"]

mine = os.environ["SLURM_ARRAY_TASK_ID"]
theirs = set(monarch_hpc.hosts().spawn_procs(per_host={"procs": 2}).spawn("task", Task).place.call().get().values())
print("task", mine, "kept apart" if theirs == {mine} else f"met {theirs}", flush=True)
"""


def runs(options: argparse.Namespace, verdict: Verdict) -> None:
    """Run a program many times on one allocation: the last runs begin as fast as the first ones of a fresh one."""
    with open_lab(2) as user:
        user.must("alloc", "worn", "-N", "1", "-t", "600")
        program = user.write("caller.py", CALLER)

        def timed(name: str) -> float:
            begun_s = time.time()
            done = user.run("run", "-a", name, program)
            lines = done.stdout.split()
            if done.returncode or lines[1:] != ["answer"]:
                raise SystemExit(f"a run failed with {done.returncode}: {done.stdout}{done.stderr}")
            return float(lines[0]) - begun_s

        num_measured = min(_MEASURED, options.count // 3)
        num_before = options.count - num_measured
        sizes = [_agent_size(user)]
        with ThreadPoolExecutor(_LANES) as lanes:
            for first in range(0, num_before, num_before // _NUM_LOOKS + 1):
                batch = range(first, min(first + num_before // _NUM_LOOKS + 1, num_before))
                list(lanes.map(lambda _: timed("worn"), batch))
                sizes.append(_agent_size(user))
                print(f"  after {batch.stop} runs: {sizes[-1]}", flush=True)
        # In turns, since the machine changes from minute to minute.
        user.must("alloc", "fresh", "-N", "1", "-t", "600")
        timed("fresh")
        pairs = [(timed("worn"), timed("fresh")) for _ in range(num_measured)]
        worn, fresh = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(worn / fresh for worn, fresh in pairs)
        print(f"median to the first line of {num_measured} pairs: worn {worn:.3f} s, fresh {fresh:.3f} s")
        what = f"the last of {options.count} runs, times those of a fresh allocation"
        verdict.say(what, f"{ratio:.3f}", ratio <= 1.1)
        # The first runs fill caches.
        warm, last = sizes[1], _agent_size(user)
        fds = f"{warm.num_fds}, then {last.num_fds}"
        verdict.say("descriptors of agent and zygote", fds, last.num_fds <= warm.num_fds + _NUM_SPARE_FDS)
        print(f"memory of both: {warm.memory_kib} KiB, then {last.memory_kib} KiB")
        print(f"files: {warm.num_files}, then {last.num_files}; `logs.keep_runs` runs keep theirs")
        left = [run for one in user.allocations() for run in one["runs"]]
        verdict.say("runs left", left or 0, not left)
        release(user, verdict)


@dataclass(frozen=True)
class _Size:
    """What the agents of the first host hold."""

    memory_kib: int
    num_fds: int
    num_files: int


def _agent_size(user: User) -> _Size:
    pids = [pid for pid, command in user.lab.processes("alice", "n1") if "monarch_hpc.agent" in command]
    memory = fds = 0
    for pid in pids:
        with contextlib.suppress(OSError):  # a proc that has ended
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            memory += sum(int(number) for number in re.findall(r"^Private_\w+: +(\d+)", rollup, re.MULTILINE))
            fds += len(os.listdir(f"/proc/{pid}/fd"))
    folder = user.lab.home() / "monarch-hpc"
    return _Size(memory, fds, sum(1 for path in folder.rglob("*") if path.is_file()))


def calls(options: argparse.Namespace, verdict: Verdict) -> None:
    """Count requests to Slurm while a job waits, and by a hundred runs."""
    with open_lab(2) as user:
        count = user.write("count", "", 0o666)
        for command in ("sbatch", "squeue", "scontrol", "scancel", "srun", "sinfo", "sacct"):
            script = f'#!/bin/sh\necho {command} >> {count}\nexec /usr/bin/{command} "$@"\n'
            user.write(f"bin/{command}", script, 0o755)
        path = user.lab.run(["sh", "-c", "echo $PATH"]).stdout.strip()
        # As sites are asked; the lab's own profile asks more often.
        intervals = {"MONARCH_HPC_SLURM__POLL_MIN_S": "5", "MONARCH_HPC_SLURM__POLL_MAX_S": "60"}
        env = {"PATH": f"{user.lab.home()}/bin:{path}", **intervals}
        user.lab.run(
            ["sbatch", "-N2", "--exclusive", "-o", "/dev/null", "-J", "filler", "--wrap", "sleep 36000"], check=True
        )
        begun_s = time.monotonic()
        waiting = user.start("alloc", "dev", "-N", "2", "-t", "60", env=env)
        while time.monotonic() - begun_s < options.minutes * 60:
            time.sleep(1)
        num_pending = len(Path(count).read_text().split())
        verdict.say(f"requests in {options.minutes:g} min in the queue", num_pending, num_pending <= 15)
        user.lab.run(["scancel", "--me", "--name=filler"], check=True)
        waiting.communicate(timeout=PATIENCE_S)
        program = user.write("caller.py", CALLER)
        Path(count).write_text("")
        for _ in range(options.count):
            if user.run("run", "-a", "dev", program, env=env).returncode:
                raise SystemExit("a run failed")
        num_runs = len(Path(count).read_text().split())
        verdict.say(f"requests by {options.count} runs", num_runs, num_runs == 0)
        release(user, verdict)


def tasks(options: argparse.Namespace, verdict: Verdict) -> None:
    """Run the tasks of an array on two hosts: each has its own allocation, and leaves nothing."""
    with open_lab(2) as user:
        output = user.lab.home() / "task-%a.out"
        words = ("--array", f"0-{options.count - 1}", "-N", "1", "-t", "5", f"--slurm=--output={output}")
        user.must("sbatch", *words, "--drop", "exclusive", "--slurm=-c4", user.write("task.py", _TASK))
        wait_until(
            "the end of all tasks", user.jobs, 60.0 * options.count, accept=lambda jobs: not jobs, interval_s=2.0
        )
        texts = [Path(str(output).replace("%a", str(number))).read_text() for number in range(options.count)]
        num_good = sum(f"task {number} kept apart" in text for number, text in enumerate(texts))
        verdict.say("tasks that did not meet", f"{num_good} of {options.count}", num_good == options.count)
        folders = list((user.lab.home() / "monarch-hpc").glob("*"))
        verdict.say("folders left", len(folders), not folders)
        nothing_left(user, verdict)


def ends(options: argparse.Namespace, verdict: Verdict) -> None:
    """Let jobs reach their time limits, be preempted and requeued: each saves before its end, and only then."""
    with open_lab(4) as user:
        saver = user.write("saver.py", _SAVER)
        for kind, number, flags in (
            ("time limit", 2 * options.count, ("-t", "1")),
            ("preemption", options.count, ("-t", "60", "-p", "scavenge", "--slurm=--no-requeue")),
            ("requeue", options.count, ("-t", "60", "--slurm=--requeue", "--slurm=--open-mode=append")),
        ):
            texts = []
            for first in range(0, number, 4):
                batch = range(first, min(first + 4, number))
                outputs = [user.lab.home() / f"{kind.replace(' ', '-')}-{one}.out" for one in batch]
                for output in outputs:
                    user.must("sbatch", "-N", "1", *flags, f"--slurm=--output={output}", saver)
                _await_words(outputs, "armed 0")
                _bring_about(user, kind)
                wait_until("the end of all", user.jobs, 600.0, accept=lambda jobs: not jobs, interval_s=1.0)
                texts += [output.read_text() for output in outputs]
            saved = [text for text in texts if "saved 0 " in text]
            verdict.say(f"{kind}: hooks that ran", f"{len(saved)} of {number}", len(saved) == number)
            if kind == "requeue":
                # What the first start does after the second one is armed would be heard by it.
                late = [text for text in texts if "saved 0 " in text.partition("armed 1")[2] or "armed 1" not in text]
                verdict.say("requeue: first starts that were heard in the second", len(late), not late)
        nothing_left(user, verdict)


def _await_words(outputs: list[Path], words: str) -> None:
    def waiting() -> list[Path]:
        return [one for one in outputs if not one.exists() or words not in one.read_text()]

    wait_until(f"'{words}' of all jobs", waiting, PATIENCE_S, accept=lambda left: not left, interval_s=0.5)


def _bring_about(user: User, kind: str) -> None:
    if kind == "preemption":
        user.lab.run(
            ["sbatch", "-N4", "--exclusive", "-o", "/dev/null", "-J", "winner", "--wrap", "sleep 5"], check=True
        )
    elif kind == "requeue":
        numbers = user.lab.run(["squeue", "--me", "-h", "-o", "%i"], check=True).stdout.split()
        for number in numbers:
            user.lab.run(["scontrol", "requeue", number], check=True)
