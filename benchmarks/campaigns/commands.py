"""Campaigns against commands: kills at random moments, crowds, a full disk, a silent slurmctld.

In each, commands start, use, change and release allocations beside one, `base`, which must survive.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.campaigns.user import CALLER, PATIENCE_S, User, Verdict, open_lab, release
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import LabFaults
from monarch_hpc.testing.slurmlab import HostProcess

__all__ = ["crowd", "full", "kills", "silent"]

_VERBS = ("alloc", "run", "sbatch", "extend", "release")
_FIRST_GUESS_S = 2.0
_DISK_BYTES = 256 << 10
_PAGE_BYTES = 4096
_SAVED_S = 12.0
"""Time after which slurmctld has saved what it was asked before: it does so every 5 s."""

_BUG, _PYTHONS_OWN = 70, 1
_TAKEN = 72
_NO_FILE = 73
_NO_SLURM = 69


class _Commands:
    """Alice's commands, by number: one verb after the other."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.codes: dict[str, Counter[int]] = defaultdict(Counter)
        self._program = user.write("caller.py", CALLER)
        user.must("alloc", "base", "-N", "1", "-t", "600")

    def words(self, number: int, *more: str) -> list[str]:
        """The command of this number: an allocation that it asks for is released by the one after the next four."""
        verb = _VERBS[number % len(_VERBS)]
        match verb:
            case "alloc":
                words = [f"a{number}", "-N", "1", "-t", "5", *more]
            case "run":
                words = ["-a", "base", self._program]
            case "sbatch":
                words = ["--slurm=--output=/dev/null", "-N", "1", "-t", "2", self._program]
            case "extend":
                words = ["base", "-1m"]
            case _:
                words = [f"a{number - 4}"]
        return [verb, *words]

    def uses_base(self) -> bool:
        """Run a program on `base`."""
        done = self.user.run("run", "-a", "base", self._program)
        if done.returncode:
            print(done.stdout, done.stderr, flush=True)
        return not done.returncode

    def note(self, words: Sequence[str], process: HostProcess, good: set[int], verdict: Verdict) -> None:
        """Note the end of a command: a code that it may not have is a broken promise."""
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            out, err = process.communicate(timeout=PATIENCE_S)
            verdict.say(" ".join(words), f"did not end in {PATIENCE_S:.0f} s: {out} {err}", kept=False)
            return
        code = process.returncode
        self.codes[words[0]][code] += 1
        if code not in good:
            verdict.say(" ".join(words), f"exit code {code}: {out} {err}", kept=False)

    def show_codes(self) -> None:
        """Print which exit codes each verb had."""
        for verb, codes in self.codes.items():
            print(f"  {verb}: " + ", ".join(f"{num} with {code}" for code, num in sorted(codes.items())), flush=True)

    def unrecorded(self) -> set[str]:
        """Her allocations' jobs that `status` does not show."""
        shown = {one["job_name"] for one in self.user.allocations()}
        return {name for name in self.user.jobs() if name.startswith("mh-") and name not in shown}

    def check(self, verdict: Verdict, after: str) -> None:
        """Check that nothing was lost, and that nothing is left once all is released."""
        self.show_codes()
        verdict.say(f"after {after}, the allocation that was used lives", "", self.uses_base())
        with contextlib.suppress(TimeoutError):
            wait_until("jobs without a record to go", self.unrecorded, 120, accept=lambda jobs: not jobs)
        unrecorded = self.unrecorded()
        verdict.say("jobs without a record", unrecorded or 0, not unrecorded)
        self.user.lab.run(["scancel", "--me", "--name=caller"])  # of sbatch, which were submitted and not killed
        release(self.user, verdict)


def kills(options: argparse.Namespace, verdict: Verdict) -> None:
    """Kill commands at random moments: no job without a record, no process is left."""
    moments = random.Random(options.seed)
    with open_lab(4) as user:
        commands = _Commands(user)
        took_s = dict.fromkeys(_VERBS, _FIRST_GUESS_S)
        number = killed = 0
        while killed < options.count:
            words = commands.words(number)
            verb = words[0]
            begun_s = time.monotonic()
            process = user.start(*words)
            try:
                process.wait(moments.uniform(0.0, took_s[verb]))
                took_s[verb] += 0.5 * (time.monotonic() - begun_s - took_s[verb])
            except subprocess.TimeoutExpired:
                # Later ones are tried, until some end by themselves.
                took_s[verb] *= 1.1
                process.send_signal(signal.SIGKILL)
            process.communicate(timeout=PATIENCE_S)
            commands.codes[verb][process.returncode] += 1
            killed += process.returncode == -signal.SIGKILL
            number += 1
            if number % 20 == 0:
                print(f"  {killed} of {number} commands killed", flush=True)
        commands.check(verdict, f"{killed} kills")


def crowd(options: argparse.Namespace, verdict: Verdict) -> None:
    """Start many commands at once on two login hosts: each does all that it shall, or is refused in words."""
    with open_lab(4) as user:
        commands = _Commands(user)
        # Two by two: the same command on both hosts.
        orders = [commands.words(number // 2, "--bg") for number in range(options.count)]
        random.Random(options.seed).shuffle(orders)
        hosts = user.lab.logins
        begun = [
            (words, user.lab.popen(user.argv(*words), host=hosts[number % 2])) for number, words in enumerate(orders)
        ]
        for words, process in begun:
            commands.note(words, process, {0, _TAKEN}, verdict)
        names = Counter(str(one["name"]) for one in json.loads(user.must("status", "--json"))["allocations"])
        verdict.say(
            "names that are taken twice", [name for name in names if names[name] > 1] or 0, len(names) == names.total()
        )
        commands.check(verdict, f"{options.count} commands at once")


@contextlib.contextmanager
def _full(user: User, folder: Path, left_bytes: int) -> Iterator[None]:
    """Fill the disk of *folder* on the login host but for *left_bytes*."""
    filler = folder / "filler"
    user.lab.run(["sh", "-c", f"cat /dev/zero > {filler} 2>/dev/null; truncate -s -{left_bytes} {filler}"], check=True)
    try:
        yield
    finally:
        user.lab.run(["rm", str(filler)], check=True)


def full(options: argparse.Namespace, verdict: Verdict) -> None:
    """Fill the disk that has the records while commands run: they say so, and lose nothing."""
    dice = random.Random(options.seed)
    with open_lab(4) as user:
        folder = user.lab.home() / ".local" / "state"
        user.lab.run(["mkdir", "-p", str(folder)], check=True)
        with LabFaults(user.lab).full("login", folder, _DISK_BYTES):
            commands = _Commands(user)
            took_s = dict.fromkeys(_VERBS, _FIRST_GUESS_S)
            for number in range(options.count):
                words = commands.words(number)
                begun_s = time.monotonic()
                process = user.start(*words)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(dice.uniform(0.0, took_s[words[0]]))
                with _full(user, folder, _PAGE_BYTES * dice.randrange(4)):
                    commands.note(words, process, {0, _TAKEN, _NO_FILE}, verdict)
                    took_s[words[0]] = 0.5 * (took_s[words[0]] + time.monotonic() - begun_s)
                    if number % 10 == 0:
                        verdict.say("a run on a full disk", "", commands.uses_base())
            commands.check(verdict, f"a disk that was full {options.count} times")


def silent(options: argparse.Namespace, verdict: Verdict) -> None:
    """Let slurmctld be dead for minutes while commands run; what they could not tell it is told later."""
    dice = random.Random(options.seed)
    with open_lab(4) as user:
        commands = _Commands(user)
        for outage in range(options.count):
            time.sleep(_SAVED_S)  # else it would have forgotten them
            first = outage * len(_VERBS)
            begun = []
            # `release` needs an allocation of its own; of the others some are asked for before, some after the end.
            user.must("alloc", f"a{first}", "-N", "1", "-t", "60")
            time.sleep(_SAVED_S)
            orders = [commands.words(number) for number in range(first, first + len(_VERBS))]
            orders[0] = ["alloc", f"b{first}", "-N", "1", "-t", "5"]
            orders.append(["status"])
            dice.shuffle(orders)
            end_at = dice.randrange(len(orders))
            for place, words in enumerate(orders):
                if place == end_at:
                    user.lab.kill_slurmctld()
                    dead_at_s = time.monotonic()
                begun.append((words, user.start(*words)))
                time.sleep(dice.uniform(0.0, 1.0))
            verdict.say("a run without slurmctld", "", commands.uses_base())
            while time.monotonic() < dead_at_s + 60 * options.minutes:
                time.sleep(1.0)
            user.lab.start_slurmctld()
            for words, process in begun:
                commands.note(words, process, {0, _NO_SLURM, _TAKEN}, verdict)
        commands.check(verdict, f"{options.count} times {options.minutes:g} min without slurmctld")
