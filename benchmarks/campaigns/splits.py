"""Campaign that divides the hosts of an allocation into two parts: one of them goes on, and the other one stops."""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.campaigns.user import PATIENCE_S, User, Verdict, open_lab, release
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.start import NO_RUN, RUN_COOKIE

__all__ = ["splits"]

_NUM_HOSTS = 4
_STOP_S = 45.0
"""Time from the cut until no proc is left in the part that has stopped: `liveness.dead_s` and `liveness.fence_s`."""

_PROGRAM = """
import os, sys, time
import monarch_hpc
import monarch_hpc.actor
from monarch_hpc import Actor, endpoint
monarch_hpc.actor.unhandled_fault_hook = lambda failure: None

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

near, stop = sys.argv[1].split(","), sys.argv[2]
hosts = monarch_hpc.hosts()
names = [entry.name for entry in hosts.entries]
echo = hosts.spawn_procs().spawn("echo", Echo)
echo.echo.call(0).get()
print("ready", flush=True)
ours = [echo.slice(hosts=names.index(name)) for name in near]
number = failed = 0
while not os.path.exists(stop):
    number += 1
    for one in ours:
        try:
            assert one.echo.call_one(number).get() == number
        except Exception as error:
            failed += 1
            print("failed", number, type(error).__name__, str(error).splitlines()[0], flush=True)
    time.sleep(0.05)
print("over", number, failed, flush=True)
"""
"""Calls the procs of the part that it is in, until a file exists."""

_PROBE = """
import monarch_hpc
from monarch_hpc import Actor, endpoint

class Echo(Actor):
    @endpoint
    def echo(self, value):
        return value

hosts = monarch_hpc.hosts()
names = [entry.name for entry in hosts.entries]
echo = hosts.spawn_procs().spawn("echo", Echo)
print("on", *names, *echo.echo.call(1).get(60).values(), flush=True)
"""


def splits(options: argparse.Namespace, verdict: Verdict) -> None:
    """Cut 1|3, 2|2 and 3|1 hosts apart, the program in either part: one part rules, the other one ends its procs."""
    dice = random.Random(options.seed)
    kinds = [(at, with_head) for at in (1, 2, 3) for with_head in (True, False)]
    for number in range(options.count):
        at, with_head = kinds[number % len(kinds)]
        with open_lab(_NUM_HOSTS) as user:
            _split(user, verdict, at, dice.uniform(0.0, 2.0), with_head=with_head)


def _split(user: User, verdict: Verdict, at: int, moment_s: float, *, with_head: bool) -> None:
    lab = user.lab
    parts = lab.hosts[:at], lab.hosts[at:]
    near = parts[0] if with_head else parts[1]
    # Of two halves the one with the program, whose owner has a voice.
    rules = near if len(near) == _NUM_HOSTS // 2 else max(parts, key=len)
    stops = parts[1] if rules is parts[0] else parts[0]
    what = f"{at}|{_NUM_HOSTS - at}, the program {'with' if with_head else 'without'} the head"
    user.must("alloc", "dev", "-N", str(_NUM_HOSTS), "-t", "600")
    stop = lab.home() / "stop"
    words = user.argv("run", "-a", "dev", user.write("program.py", _PROGRAM), ",".join(near), str(stop))
    program = lab.popen(words, host=near[-1])
    assert program.stdout is not None
    if program.stdout.readline() != "ready\n":
        raise SystemExit(f"{what}: {program.communicate(timeout=PATIENCE_S)}")
    probe = user.write("probe.py", _PROBE)
    time.sleep(moment_s)
    for one in parts[0]:
        for other in parts[1]:
            lab.cut(one, other)
    cut_at_s = time.monotonic()
    with contextlib.suppress(TimeoutError):
        wait_until("the end of procs", lambda: _procs(user, stops), 3 * _STOP_S, accept=lambda left: not left)
    took_s = time.monotonic() - cut_at_s
    left = _procs(user, stops)
    verdict.say(f"{what}: procs of the other part after {took_s:.0f} s", left or 0, not left)
    # They end earlier where the owner of their run is in the other part; the head takes orders until it is fenced.
    time.sleep(max(0.0, cut_at_s + _STOP_S - time.monotonic()))
    worked = [part for part in parts if _works(user, part, probe)]
    verdict.say(f"{what}: parts that take orders", worked, worked == [rules])
    for one in parts[0]:
        for other in parts[1]:
            lab.join(one, other)
    wait_until("all hosts to be seated", lambda: _seats(user), PATIENCE_S, accept=_all_seated)
    stop.touch()
    out, err = program.communicate(timeout=PATIENCE_S)
    over = re.search(r"^over (\d+) (\d+)$", out, re.MULTILINE)
    if near is rules:
        good = program.returncode == 0 and over is not None and over[2] == "0" and int(over[1]) > 0
        verdict.say(
            f"{what}: calls in its own part", over[0] if good and over else (program.returncode, out, err), good
        )
    else:
        # Its procs are gone, and nothing hangs.
        verdict.say(f"{what}: exit code of the program", program.returncode, over is None or over[2] != "0")
    again = user.run("run", "-a", "dev", probe)
    good = again.returncode == 0 and f"on {' '.join(lab.hosts)} 1 1 1 1\n" in again.stdout
    verdict.say(f"{what}: a run on all hosts afterwards", "" if good else (again.stdout, again.stderr), good)
    release(user, verdict)


def _works(user: User, part: Sequence[str], probe: str) -> bool:
    """Whether a program that starts in *part* gets procs there."""
    try:
        done = user.lab.run(user.argv("run", "-a", "dev", probe), host=part[0], timeout_s=120.0)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode or f"on {' '.join(part)} 1" not in done.stdout:
        print(f"  {part}: exit code {done.returncode}: {done.stdout} {done.stderr.strip()[-500:]}", flush=True)
        return False
    return True


def _seats(user: User) -> dict[str, tuple[str, bool]]:
    done = user.run("status", "dev", "--json")
    (shown,) = json.loads(done.stdout)["allocations"] if done.stdout else [{"hosts": []}]
    return {host["name"]: (host["state"], host["head"]) for host in shown["hosts"]}


def _all_seated(seats: dict[str, tuple[str, bool]]) -> bool:
    states = list(seats.values())
    return (
        len(states) == _NUM_HOSTS
        and all(state == "alive" for state, _ in states)
        and sum(one for _, one in states) == 1
    )


def _procs(user: User, hosts: Sequence[str]) -> list[str]:
    """Procs of runs on these hosts."""
    of_run = re.compile(rf"(?:^|\0){RUN_COOKIE}=(?!{NO_RUN})[0-9a-f]".encode())
    found = []
    for host in hosts:
        for pid, command in user.lab.processes("alice", host):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if of_run.search(Path(f"/proc/{pid}/environ").read_bytes()) and "monarch_hpc.cli" not in command:
                    found.append(f"{host}: {pid} {command}")
    return found
