"""Campaigns against programs that outlive their clients, and against programs whose runs outlive them."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import sys
import time
from pathlib import Path

from benchmarks.campaigns.user import PATIENCE_S, User, Verdict, open_lab, release
from monarch_hpc.core.machine.procfs import read_cpu_s
from monarch_hpc.testing.slurmlab import HostProcess
from tests.system.support.takeovers import account, write_program

__all__ = ["clients", "places", "takeovers"]

_NUMBERS = """
import os, sys, time
number = 0
while not os.path.exists(sys.argv[1]):
    number += 1
    print(number, flush=True)
    time.sleep(0.005)
print("end", flush=True)
"""

_LINE = "print('line', flush=True)"


def _kill_all(user: User, host: str) -> None:
    for pid, _ in user.lab.processes("alice", host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def clients(options: argparse.Namespace, verdict: Verdict) -> None:
    """Kill clients of a program on the first host, and all processes of the login host; the program goes on."""
    moments = random.Random(options.seed)
    with open_lab(2) as user:
        user.must("alloc", "dev", "-N", "2", "-t", "600")
        stop = str(user.lab.home() / "stop")
        run = user.must("run", "-a", "dev", "--detach", user.write("numbers.py", _NUMBERS), stop).split()[0]
        num_alive, took, floors = 0, list[float](), list[float]()
        line = user.write("line.py", _LINE)
        for number in range(options.count + options.count // 5):
            # The second login host shares the registry with the first.
            host = user.lab.logins[number % 2]
            if number % 5 == 0:
                _, floor_s = _first_line(user, [sys.executable, line], host)
                floors.append(floor_s)
            client, took_s = _first_line(user, user.argv("attach", run), host)
            took.append(took_s)
            time.sleep(moments.uniform(0.0, 0.2))
            if number < options.count:
                client.send_signal(signal.SIGKILL)
            else:
                _kill_all(user, host)
            client.communicate(timeout=PATIENCE_S)
            num_alive += any("numbers.py" in command for _, command in user.lab.processes("alice", "n1"))
            if number % 20 == 19:
                print(f"  {number + 1} killed, the program lived {num_alive} times", flush=True)
        verdict.say("the program goes on", f"{num_alive} of {len(took)} times", num_alive == len(took))
        print(
            f"attach to its first line: median {statistics.median(took):.2f} s, longest {max(took):.2f} s; "
            f"{statistics.median(took) / statistics.median(floors):.1f} times python alone"
        )
        Path(stop).touch()
        whole = user.must("attach", "--all", run).split()
        in_order = whole == [*(str(number + 1) for number in range(len(whole) - 1)), "end"]
        verdict.say("each line once and in order", f"{len(whole)} lines", in_order)
        release(user, verdict)


def _first_line(user: User, argv: list[str], host: str = "login") -> tuple[HostProcess, float]:
    begun_s = time.monotonic()
    process = user.lab.popen(argv, host=host)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise SystemExit(f"{' '.join(argv)}: no output: {process.communicate(timeout=PATIENCE_S)}")
    return process, time.monotonic() - begun_s


def _cpu_s(user: User, host: str) -> float:
    """CPU time of all her processes on a host."""
    return sum(read_cpu_s(pid) for pid, _ in user.lab.processes("alice", host))


def _spread(seconds: list[float]) -> str:
    ninth = statistics.quantiles(seconds, n=10, method="inclusive")[-1] if len(seconds) > 1 else seconds[0]
    return f"median {statistics.median(seconds):.2f} s, p90 {ninth:.2f} s, longest {max(seconds):.2f} s"


def places(options: argparse.Namespace, verdict: Verdict) -> None:
    """Compare, in turns, the time to a program's first line on the first host and beside the command."""
    with open_lab(1) as user:
        user.must("alloc", "dev", "-N", "1", "-t", "600")
        line = user.write("line.py", _LINE)
        pairs = []
        for _ in range(options.count):
            both = []
            for place in ("here", "host0"):
                process, took_s = _first_line(user, user.argv("run", "-a", "dev", "--on", place, line))
                process.communicate(timeout=PATIENCE_S)
                both.append(took_s)
            pairs.append(both)
        here, there = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"median to the first line: here {here:.3f} s, host0 {there:.3f} s")
        ratio = statistics.median(there / here for here, there in pairs)
        verdict.say("first line on host0, times here", f"{ratio:.2f}", ratio <= 1.5)
        release(user, verdict)


def takeovers(options: argparse.Namespace, verdict: Verdict) -> None:
    """Kill programs under hold, one after the other: each answer is read once, by one of them."""
    moments = random.Random(options.seed)
    with open_lab(2) as user:
        home = user.lab.home()
        user.must("alloc", "dev", "-N", "2", "-t", "600")
        write_program(home)
        for name in ("worker.py", "program.py"):
            (home / name).chmod(0o644)
        command, _ = _first_line(user, user.argv("run", "-a", "dev", "--on-loss", "hold", "program.py", "p0"))
        run = user.runs()[0]
        host, took, cpu = "login", list[float](), list[float]()
        for number in range(1, options.count + 1):
            time.sleep(moments.uniform(0.0, 0.3))
            if number % 5:
                for pid, words in user.lab.processes("alice", host):
                    if f"program.py p{number - 1}" in words and "monarch_hpc.cli" not in words:
                        os.kill(pid, signal.SIGKILL)
            else:
                _kill_all(user, host)
            command.communicate(timeout=PATIENCE_S)
            host = user.lab.logins[number % 2]
            again = user.argv("attach", run, "-a", "dev", "--takeover", "--", "program.py", f"p{number}")
            command, took_s = _first_line(user, again, host)
            took.append(took_s)
            cpu.append(_cpu_s(user, host))
            if number % 20 == 0:
                print(f"  {number} programs killed", flush=True)
        _kill_all(user, host)
        command.communicate(timeout=PATIENCE_S)
        last = (home / "program.py").read_text().partition("one = work")[0] + "procs = taken.meshes['procs']\n"
        user.write("last.py", last + "procs.stop().get()\n")
        done = user.run("attach", run, "--takeover", "--", "last.py", "last")
        verdict.say("the last program", done.stderr, not done.returncode)
        found = account(home)
        verdict.say("answers that were lost", len(found.lost), not found.lost)
        verdict.say("answers that were read twice", len(found.twice), not found.twice)
        print(f"found in the hands of killed programs: {len(found.found)}")
        rules = [line.split() for line in (home / "journal").read_text().splitlines() if " rules " in line]
        own = [float(words[3]) for words in rules]
        print(f"takeover from the command: {_spread(took)}")
        print(f"  from the program's begin: {_spread(own)}")
        print(f"  CPU time of the command and the program until then: {_spread(cpu)}")
        verdict.say("runs left", user.runs() or 0, not user.runs())
        release(user, verdict)
