"""A program that asks an actor for answers and writes each down, and takes the run of an earlier one over."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.testing import wait_until
from tests.system.support.first_host import start

__all__ = ["Account", "account", "begin", "kill_program", "program_of", "ready", "taken_after_s", "write_program"]

_WORKER = """
import os, time
import monarch_hpc

class Odd(Exception):
    def __reduce__(self):
        raise TypeError("not to be pickled")

class Trap:
    def __reduce__(self):
        return exec, ("raise RuntimeError('a trap')",)

class Worker(monarch_hpc.Actor):
    @monarch_hpc.endpoint
    def work(self, name):
        with open("executed", "a") as file:
            file.write(f"{name}\\n")
        return name

    @monarch_hpc.endpoint
    def wait_for(self, path, value):
        while not os.path.exists(path):
            time.sleep(0.01)
        return value

    @monarch_hpc.endpoint
    def odd(self):
        raise Odd("an odd one")

    @monarch_hpc.endpoint
    def trap(self):
        return Trap()

    @monarch_hpc.endpoint
    def pid(self):
        return os.getpid()

    @monarch_hpc.endpoint
    def blob(self, num_bytes):
        return bytes(num_bytes)
"""

_PROGRAM = """
import collections, os, sys, time
begun = time.time()
import monarch_hpc
from worker import Worker

journal = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
me = sys.argv[1]

def note(*words):
    os.write(journal, (" ".join(map(str, (me, *words))) + "\\n").encode())

def take(name, future):
    note("reads", name)
    note("has", future.get())

if "MONARCH_HPC_TAKES" in os.environ:
    taken = monarch_hpc.takeover()
    note("rules", time.time(), time.time() - begun)
    work = taken.meshes["work"]
    for index, answer in enumerate(taken.unfetched):
        take(f"{index} of {len(taken.unfetched)}", answer)
    for answer in taken.in_hand:
        note("finds", answer.get())
    note("dropped", taken.num_dropped)
else:
    procs = monarch_hpc.hosts().spawn_procs(per_host={"p": 1}, name="procs")
    work = procs.spawn("work", Worker)
one = work.slice(hosts=1, p=0)
window = collections.deque()
one.pid.call_one().get()
print("ready", flush=True)
for number in range(1_000_000):
    name = f"{me}.{number}"
    window.append((name, one.work.call_one(name)))
    if len(window) > 8:
        take(*window.popleft())
"""


def write_program(home: Path) -> None:
    """Write the program and the module of its actors; and forget what earlier ones have written."""
    for left in ("executed", "journal"):
        (home / left).unlink(missing_ok=True)
    (home / "worker.py").write_text(_WORKER)
    (home / "program.py").write_text(_PROGRAM)


def begin(home: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a command, and wait until its program says that it is ready."""
    process = start(home, *words)
    try:
        ready(process)
    except AssertionError as error:
        error.add_note("\n".join(f"{path}:\n{path.read_text()[-4000:]}" for path in sorted(home.rglob("local*.err"))))
        raise
    return process


def ready(process: subprocess.Popen[bytes]) -> None:
    """Wait until the program says that it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != b"ready\n":
        _, err = process.communicate(timeout=60.0)
        raise AssertionError(f"not ready: {line!r}\n{err.decode()}")


def program_of(command: subprocess.Popen[bytes]) -> int:
    """The process id of the program that a command has started."""
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    return int(wait_until("its program", lambda: children.read_text().split())[0])


def kill_program(command: subprocess.Popen[bytes]) -> None:
    """Kill the program of a command, at once."""
    os.kill(program_of(command), signal.SIGKILL)


@dataclass(frozen=True)
class Account:
    """What has become of the answers.

    Attributes:
        lost: calls that were carried out, and whose answer nobody has.
        twice: answers that were read more than once.
        found: answers that a killed program was about to get, and that its successor found in its hand.
    """

    lost: list[str]
    twice: list[str]
    found: list[str]


def account(home: Path) -> Account:
    """Compare what was carried out with what was read; valid when the last program has read all."""
    executed = (home / "executed").read_text().split()
    assert len(executed) == len(set(executed)), "a call was carried out twice"
    lines = [line.split() for line in (home / "journal").read_text().splitlines()]
    had = Counter(words[2] for words in lines if words[1] == "has")
    in_hand = {words[2] for words in lines if words[1] == "finds"}
    return Account(
        [name for name in executed if not had[name] and name not in in_hand],
        [name for name, times in had.items() if times > 1],
        [name for name in executed if not had[name] and name in in_hand],
    )


def taken_after_s(home: Path, began: Mapping[str, float]) -> list[float]:
    """How long after its command had started each program ruled; *began* has these times by program."""
    lines = [line.split() for line in (home / "journal").read_text().splitlines()]
    return [float(words[2]) - began[words[0]] for words in lines if words[1] == "rules" and words[0] in began]


def now() -> float:
    """The time, as programs write it."""
    return time.time()
