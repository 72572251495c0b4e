"""Long campaigns on a Slurm lab of their own, as an ordinary user of it (needs root).

    python -m benchmarks.campaigns runs --number 3000      # whether an allocation wears out
    python -m benchmarks.campaigns clients --number 100    # kills of clients, and of all that is on the login host
    python -m benchmarks.campaigns kills --number 200      # kills of commands at random moments
    python -m benchmarks.campaigns calls --minutes 10      # requests to Slurm while a job waits, and by runs
    python -m benchmarks.campaigns tasks --number 64       # tasks of an array, two at a time, on two hosts
    python -m benchmarks.campaigns ends --number 10        # twice as many time limits, and preemptions and requeues

Each prints what it found and exits with 1 if a promise was not kept. Times are ratios to a floor that is measured in
turns with them, since a machine with other work on it changes from minute to minute.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lab_user import PATIENCE_S, User, Verdict, open_lab
from monarch_hpc.testing import wait_until

# Commands that run at the same time where none of them is measured.
_LANES = 4
_MEASURED = 100

_CALLER = """
import time
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, text):
        return text

print(time.time(), flush=True)
print(monarch_hpc.hosts().slice(hosts=0).spawn_procs().spawn("echo", Echo).echo.call_one("answer").get(), flush=True)
"""

_BARE = "import time; print(time.time(), flush=True)"

_NUMBERS = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    number += 1
    print(number, flush=True)
    time.sleep(0.005)
print("end", flush=True)
"""

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
    """Run a program many times on one allocation: the last runs begin as fast as the first."""
    with open_lab(2) as user:
        user.must("alloc", "dev", "-N", "2", "-t", "600")
        program, bare = user.write("caller.py", _CALLER), user.write("bare.py", _BARE)

        def timed(argv: list[str]) -> float:
            begun_s = time.time()
            done = user.lab.run(argv, timeout_s=PATIENCE_S)
            lines = done.stdout.split()
            if done.returncode or lines[1:] not in ([], ["answer"]):
                raise SystemExit(f"a run failed with {done.returncode}: {done.stdout}{done.stderr}")
            return float(lines[0]) - begun_s

        def measure() -> tuple[float, float]:
            pairs = []
            for _ in range(min(_MEASURED, options.number // 2)):
                pairs.append((timed(user.argv("run", "-a", "dev", program)), timed([sys.executable, bare])))
            return (
                statistics.median(ours / floor for ours, floor in pairs),
                statistics.median(ours for ours, _ in pairs),
            )

        measure()  # the first few warm caches
        first, first_s = measure()
        with ThreadPoolExecutor(_LANES) as lanes:
            between = range(max(0, options.number - 3 * min(_MEASURED, options.number // 2)))
            list(lanes.map(lambda _: timed(user.argv("run", "-a", "dev", program)), between))
        last, last_s = measure()
        print(
            f"median to the first line: {first_s:.3f} s, then {last_s:.3f} s; {first:.1f} and {last:.1f} times python"
        )
        verdict.say(
            f"the last of {options.number} runs begin as fast as the first", f"{last / first:.3f}", last <= 1.1 * first
        )
        (shown,) = json.loads(user.must("status", "--json"))["allocations"]
        verdict.say("no run is left", shown["runs"], not shown["runs"])
        _release(user, verdict)


def clients(options: argparse.Namespace, verdict: Verdict) -> None:
    """Kill clients of a program on the first host, and all processes of the login host; the program goes on."""
    moments = random.Random(1)
    with open_lab(2) as user:
        user.must("alloc", "dev", "-N", "2", "-t", "600")
        stop = str(user.lab.home() / "stop")
        run = user.must("run", "-a", "dev", "--detach", user.write("numbers.py", _NUMBERS), stop).split()[0]
        num_alive, took = 0, []
        for number in range(options.number + options.number // 5):
            begun_s = time.monotonic()
            # The second login host shares the registry with the first.
            host = user.lab.logins[number % 2]
            client = user.lab.popen(user.argv("attach", run), host=host)
            assert client.stdout is not None
            client.stdout.readline()
            took.append(time.monotonic() - begun_s)
            time.sleep(moments.uniform(0.0, 0.2))
            if number < options.number:
                client.send_signal(signal.SIGKILL)
            else:
                for pid, _ in user.lab.processes("alice", host):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            client.communicate(timeout=PATIENCE_S)
            num_alive += any("numbers.py" in command for _, command in user.lab.processes("alice", "n1"))
        verdict.say("the program goes on", f"{num_alive} of {len(took)} times", num_alive == len(took))
        print(f"attach to its first line: median {statistics.median(took):.2f} s, longest {max(took):.2f} s")
        Path(stop).touch()
        whole = user.must("attach", "--all", run).split()
        in_order = whole == [*(str(number + 1) for number in range(len(whole) - 1)), "end"]
        verdict.say("each line once and in order", f"{len(whole)} lines", in_order)
        _release(user, verdict)


def kills(options: argparse.Namespace, verdict: Verdict) -> None:
    """Kill commands at random moments: no job without a record, no process is left."""
    moments = random.Random(2)
    with open_lab(4) as user:
        program = user.write("caller.py", _CALLER)
        job = ("--slurm=--output=/dev/null", "-N", "1", "-t", "2")

        def commands(number: int) -> list[tuple[str, ...]]:
            return [
                ("alloc", f"a{number}", "-N", "1", "-t", "5"),
                ("run", "-a", "base", program),
                ("sbatch", *job, program),
                ("extend", "base", "-1m"),
                ("release", f"a{number - 5}"),
            ]

        user.must("alloc", "base", "-N", "1", "-t", "600")
        longest_s = 3.0 * _seconds(lambda: user.must("run", "-a", "base", program))
        for number in range(options.number):
            process = user.start(*commands(number)[number % 5])
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(moments.uniform(0.0, longest_s))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)
        verdict.say("the allocation that was used lives", "", user.run("run", "-a", "base", program).returncode == 0)

        def unrecorded() -> set[str]:
            shown = {one["job_name"] for one in json.loads(user.must("status", "--json"))["allocations"]}
            return {name for name, state in user.jobs().items() if name.startswith("mh-") and name not in shown}

        with contextlib.suppress(TimeoutError):
            wait_until("jobs without a record to go", unrecorded, 120, accept=lambda jobs: not jobs)
        verdict.say(f"after {options.number} kills, jobs without a record", unrecorded() or 0, not unrecorded())
        user.lab.run(["scancel", "--me", "--name=caller"])  # of sbatch, which were submitted and not killed
        _release(user, verdict)


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
        program = user.write("caller.py", _CALLER)
        Path(count).write_text("")
        for _ in range(options.number):
            if user.run("run", "-a", "dev", program, env=env).returncode:
                raise SystemExit("a run failed")
        num_runs = len(Path(count).read_text().split())
        verdict.say(f"requests by {options.number} runs", num_runs, num_runs == 0)
        _release(user, verdict)


def tasks(options: argparse.Namespace, verdict: Verdict) -> None:
    """Run the tasks of an array on two hosts: each has its own allocation, and leaves nothing."""
    with open_lab(2) as user:
        output = user.lab.home() / "task-%a.out"
        words = ("--array", f"0-{options.number - 1}", "-N", "1", "-t", "5", f"--slurm=--output={output}")
        user.must("sbatch", *words, "--drop", "exclusive", "--slurm=-c4", user.write("task.py", _TASK))
        wait_until(
            "the end of all tasks", user.jobs, 60.0 * options.number, accept=lambda jobs: not jobs, interval_s=2.0
        )
        texts = [Path(str(output).replace("%a", str(number))).read_text() for number in range(options.number)]
        num_good = sum(f"task {number} kept apart" in text for number, text in enumerate(texts))
        verdict.say("tasks that did not meet", f"{num_good} of {options.number}", num_good == options.number)
        folders = list((user.lab.home() / "monarch-hpc").glob("*"))
        verdict.say("folders left", len(folders), not folders)
        _nothing_left(user, verdict)


def ends(options: argparse.Namespace, verdict: Verdict) -> None:
    """Let jobs reach their time limits, be preempted and requeued: each saves before its end, and only then."""
    with open_lab(4) as user:
        saver = user.write("saver.py", _SAVER)
        for kind, number, flags in (
            ("time limit", 2 * options.number, ("-t", "1")),
            ("preemption", options.number, ("-t", "60", "-p", "scavenge", "--slurm=--no-requeue")),
            ("requeue", options.number, ("-t", "60", "--slurm=--requeue", "--slurm=--open-mode=append")),
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
        _nothing_left(user, verdict)


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


def _release(user: User, verdict: Verdict) -> None:
    done = user.run("release", "--all")
    verdict.say("release", done.stdout.strip() or done.stderr, not done.returncode)
    verdict.say("jobs left", user.jobs() or 0, not user.jobs())
    _nothing_left(user, verdict)


def _nothing_left(user: User, verdict: Verdict) -> None:
    with contextlib.suppress(TimeoutError):
        wait_until("the end of all processes", user.left, 60.0, accept=lambda left: not left)
    verdict.say("processes left", user.left() or 0, not user.left())


def _seconds(call: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


_CAMPAIGNS = {one.__name__: one for one in (runs, clients, kills, calls, tasks, ends)}
_NUMBERS_OF = {"runs": 3000, "clients": 100, "kills": 200, "calls": 100, "tasks": 64, "ends": 10}


def main() -> int:
    """Run one campaign; 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", choices=_CAMPAIGNS)
    parser.add_argument("--number", type=int, help="of runs, kills or tasks")
    parser.add_argument("--minutes", type=float, default=10.0, help="that a job waits")
    options = parser.parse_args()
    options.number = options.number or _NUMBERS_OF[options.campaign]
    verdict = Verdict()
    begun_s = time.monotonic()
    _CAMPAIGNS[options.campaign](options, verdict)
    print(f"{options.campaign}: {time.monotonic() - begun_s:.0f} s, load {os.getloadavg()[0]:.1f}")
    return 0 if verdict.kept else 1


if __name__ == "__main__":
    sys.exit(main())
