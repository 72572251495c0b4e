"""The faults of `benchmarks.chaos`, and the places that suffer them: embedded hosts, or those of a lab with a Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from monarch_hpc.core.machine.procfs import each_pid
from monarch_hpc.testing import wait_until
from monarch_hpc.testing.faults import LabFaults, hosts_of
from monarch_hpc.testing.slurmlab import SlurmLab

__all__ = [
    "EMBEDDED",
    "FAULTS",
    "LAB",
    "Broken",
    "EmbeddedPlace",
    "Fault",
    "LabPlace",
    "Place",
    "Run",
    "open_embedded",
    "open_lab",
]

EMBEDDED, LAB = "embedded", "lab"
_BOTH = (EMBEDDED, LAB)
_PROGRAM = Path(__file__).with_name("chaos_program.py")
_END_S = 120.0
_NUM_LAST_LINES = 8
_NUM_HOSTS = 4
_SETTINGS = {
    # As many agents die as one has in years.
    "MONARCH_HPC_HEAL__PER_HOUR": "100000",
    "MONARCH_HPC_HEAL__BACKOFF_S": "1",
    "MONARCH_HPC_PROCS__STOP_S": "1",
}
_ONE, _HOST, _ALL, _NONE = "one", "host", "all", "none"


class Broken(Exception):
    """A program that has ended too early; the message has its last words."""


class Breaker(Protocol):
    """What inflicts faults from outside: on a host, by the rank that it has in the allocation, or on all of it."""

    def break_(self, what: str, host: int) -> None:
        """Inflict the fault of this name."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: of the fault: of `monarch_hpc.testing.faults.inside` if *inside*, else for `Breaker.break_`.
        weight: how often it is drawn.
        dies: one proc, all of a host, all, or none.
        kinds: kinds of death that say what happened.
        ends_run: whether the allocation is not as it was afterwards.
        ends_all: whether it has ended.
    """

    name: str
    weight: int
    dies: str
    kinds: tuple[str, ...] = ()
    inside: bool = True
    where: tuple[str, ...] = _BOTH
    args: Callable[[random.Random], list[float]] = lambda _dice: []
    ends_run: bool = False

    @property
    def ends_all(self) -> bool:
        """Whether the allocation ends by it."""
        return self.dies == _ALL

    def victims(self, dice: random.Random) -> list[int]:
        """Draw the ranks that die."""
        host = dice.randrange(2)
        match self.dies:
            case "one":
                return [2 * host + dice.randrange(2)]
            case "host":
                return [2 * host, 2 * host + 1]
            case "all":
                return [0, 1, 2, 3]
        return []

    def arguments(self, dice: random.Random) -> list[float]:
        """Draw the fault's arguments."""
        return self.args(dice)


def _outside(name: str, weight: int, dies: str, *kinds: str, where: tuple[str, ...], ends_run: bool = False) -> Fault:
    return Fault(name, weight, dies, kinds, inside=False, where=where, ends_run=ends_run)


FAULTS = (
    Fault("kill", 20, _ONE, ("signal",)),
    Fault("segfault", 10, _ONE, ("signal",)),
    Fault("abort", 10, _ONE, ("signal",)),
    Fault("exit", 10, _ONE, ("exit",), args=lambda dice: [dice.randrange(4)]),
    Fault("stop", 2, _ONE, ("signal",)),
    Fault("pause", 5, _NONE, args=lambda dice: [dice.uniform(0.1, 2.0)]),
    Fault("hold_gil", 5, _NONE, args=lambda dice: [dice.uniform(0.1, 2.0)]),
    _outside("agent killed", 8, _HOST, "network", "unknown", "node-failure", where=_BOTH),
    _outside("host frozen 2 s", 3, _NONE, where=(EMBEDDED,)),
    _outside("host off", 3, _HOST, "network", "unknown", where=(EMBEDDED,)),
    _outside("head killed", 3, _NONE, where=_BOTH, ends_run=True),
    _outside("cable out 3 s", 4, _NONE, where=(LAB,)),
    _outside("hosts cut off 5 s", 4, _NONE, where=(LAB,)),
    _outside("deaf one way 5 s", 3, _NONE, where=(LAB,)),
    _outside("slurmctld down 3 s", 3, _NONE, where=(LAB,)),
    _outside("head's host off", 2, _NONE, where=(LAB,), ends_run=True),
    _outside("head's cable out", 2, _NONE, where=(LAB,), ends_run=True),
    _outside("power off", 2, _HOST, "network", "node-failure", where=(LAB,), ends_run=True),
    _outside("cable out", 2, _HOST, "network", "node-failure", where=(LAB,), ends_run=True),
    _outside("marked down", 2, _HOST, "node-failure", where=(LAB,), ends_run=True),
    _outside("step cancelled", 2, _ALL, "cancelled", where=(LAB,), ends_run=True),
    _outside("job cancelled", 2, _ALL, "cancelled", where=(LAB,), ends_run=True),
)
"""Drawn by weight, so that most are those that a program can survive many times."""


class Run:
    """A running program, see `benchmarks.chaos_program`."""

    def __init__(
        self, stdin: IO[str], stdout: IO[str], stderr: Path, breaker: Callable[[dict[str, Any]], Breaker]
    ) -> None:
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        self._breaker = breaker(self._answer())

    def suffer(self, fault: Fault, ranks: list[int], args: list[float]) -> dict[str, Any]:
        """Let it suffer a fault; return what came of it."""
        heals = not fault.ends_run or not ranks
        self._order(fault=fault.name, ranks=ranks, args=args, inside=fault.inside, heals=heals)
        if not fault.inside:
            answer = self._answer()
            if not answer.get("ready"):
                return answer
            host = 1 + ranks[0] // 2 if ranks else 1
            at_s = time.monotonic()
            self._breaker.break_(fault.name, host)
            self._order(at_s=at_s)
        return self._answer()

    def close(self) -> dict[str, Any]:
        """End it; return what was wrong."""
        self._order(fault="")
        return self._answer()

    def _order(self, **fields: object) -> None:
        with contextlib.suppress(OSError):  # `_answer` says why
            self._stdin.write(json.dumps(fields) + "\n")
            self._stdin.flush()

    def _answer(self) -> dict[str, Any]:
        line = self._stdout.readline()
        if not line:
            words = [
                line for line in self._stderr.read_text(errors="replace").splitlines() if not line.startswith("[r")
            ]
            raise Broken(" | ".join(words[-_NUM_LAST_LINES:]))
        answer: dict[str, Any] = json.loads(line)
        return answer


class Place(ABC):
    """Where programs run."""

    @abstractmethod
    def run(self, seed: int) -> contextlib.AbstractContextManager[Run]:
        """Start a program on an allocation of its own."""

    @abstractmethod
    def left(self) -> list[str]:
        """What the last run has left, once that can be told."""


# ---- embedded hosts ----


class _EmbeddedBreaker:
    def __init__(self, started: dict[str, Any]) -> None:
        self._directory = Path(started["directory"])

    def break_(self, what: str, host: int) -> None:
        match what:
            case "agent killed":
                hosts_of(self._directory)[host].kill_agent()
            case "head killed":
                hosts_of(self._directory)[0].kill_agent()
            case "host off":
                hosts_of(self._directory)[host].power_off()
            case "host frozen 2 s":
                with hosts_of(self._directory)[host].frozen():
                    time.sleep(2)
            case _:
                raise ValueError(what)


class EmbeddedPlace(Place):
    """Processes of this machine, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mark = f"CHAOS_FOLDER={folder}".encode()

    @contextlib.contextmanager
    def run(self, seed: int) -> Iterator[Run]:
        argv = [sys.executable, "-m", "monarch_hpc.cli", "run", "--local", str(_NUM_HOSTS), str(_PROGRAM), str(seed)]
        own = {"CHAOS_FOLDER": str(self._folder), "XDG_STATE_HOME": str(self._folder / "state")}
        stderr = self._folder / "stderr"
        with stderr.open("w") as file:
            env = {**os.environ, **_SETTINGS, **own}
            process = subprocess.Popen(
                argv,
                cwd=self._folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )
        with _ended(process) as (stdin, stdout):
            yield Run(stdin, stdout, stderr, _EmbeddedBreaker)

    def left(self) -> list[str]:
        return _await_none(lambda: [f"process {pid}" for pid in each_pid() if _has(pid, self._mark)])


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


@contextlib.contextmanager
def open_embedded() -> Iterator[Place]:
    """Embedded allocations of four hosts."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        yield EmbeddedPlace(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- a lab ----


class _LabBreaker:
    def __init__(self, lab: SlurmLab, job: str) -> None:
        self._lab, self._job = lab, job
        self._faults = LabFaults(lab)

    def break_(self, what: str, host: int) -> None:
        name, faults = f"n{host + 1}", self._faults
        match what:
            case "agent killed":
                self._kill_agent(name)
            case "head killed":
                self._kill_agent("n1")
            case "cable out 3 s":
                with faults.unplugged(name):
                    time.sleep(3)
            case "hosts cut off 5 s":
                with faults.cut("n2", "n3"):
                    time.sleep(5)
            case "deaf one way 5 s":
                with faults.cut("n2", "n3", one_way=True):
                    time.sleep(5)
            case "slurmctld down 3 s":
                with faults.without_slurmctld():
                    time.sleep(3)
            case "head's host off":
                self._lab.link_down("n1")
                self._lab.kill_host("n1")
            case "head's cable out":
                self._lab.link_down("n1")
            case "power off":
                self._lab.link_down(name)  # else the kernel, which all hosts share, would end its connections
                self._lab.kill_host(name)
            case "cable out":
                self._lab.link_down(name)
            case "marked down":
                faults.mark_down(name)
            case "step cancelled":
                faults.cancel(f"{self._job}.0")
            case "job cancelled":
                faults.cancel(self._job)
            case _:
                raise ValueError(what)

    def _kill_agent(self, host: str) -> None:
        for pid, command in self._lab.processes("alice", host):
            if "monarch_hpc.agent" in command:
                with contextlib.suppress(ProcessLookupError):  # the parent of another, which ended with it
                    os.kill(pid, signal.SIGKILL)


class LabPlace(Place):
    """The hosts of a lab, with a Slurm; *stderr* is a file for the programs' words."""

    def __init__(self, lab: SlurmLab, stderr: Path) -> None:
        self._lab, self._stderr = lab, stderr
        home = lab.home("alice")
        self._env = {
            **_SETTINGS,
            "XDG_STATE_HOME": str(home / "state"),
            "MONARCH_HPC_PATHS__SHARED": str(home / "shared"),
        }
        self._program = home / _PROGRAM.name
        self._program.write_text(_PROGRAM.read_text())
        self._program.chmod(0o644)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "monarch_hpc.cli", *words]

    @contextlib.contextmanager
    def run(self, seed: int) -> Iterator[Run]:
        self._lab.run(self._command("alloc", "chaos", "-N", "4", "-t", "60"), env=self._env, timeout_s=180, check=True)
        job = self._lab.run(["squeue", "--me", "-h", "-o", "%A"], check=True).stdout.split()[-1]
        argv = self._command("run", "-a", "chaos", str(self._program), str(seed))
        stderr = self._stderr
        with stderr.open("w") as file:
            process = self._lab.popen(argv, env=self._env, stdin=subprocess.PIPE, stderr=file)
        with _ended(process) as (stdin, stdout):
            yield Run(stdin, stdout, stderr, lambda _started: _LabBreaker(self._lab, job))
        self._lab.run(self._command("release", "--all"), env=self._env, timeout_s=180)

    def left(self) -> list[str]:
        def found() -> list[str]:
            jobs = self._lab.run(["squeue", "--me", "-h", "-o", "job %A %T"], timeout_s=30).stdout.splitlines()
            up = filter(self._lab.is_up, ("login", *self._lab.hosts))
            return jobs + [f"{host}: {command}" for host in up for _, command in self._lab.processes("alice", host)]

        for host in filter(self._lab.is_up, self._lab.hosts):
            self._lab.link_up(host)  # what is there could not learn of the end
        left = _await_none(found)
        self._lab.reset(180.0)
        return left


@contextlib.contextmanager
def open_lab() -> Iterator[Place]:
    """Allocations of four hosts of a lab, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    folder.chmod(0o755)
    try:
        with SlurmLab("chaos", base=folder / "lab", tied=True) as lab:
            yield LabPlace(lab, folder / "stderr")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- both ----


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[tuple[IO[str], IO[str]]]:
    """The pipes of a process that has ended, or is killed, when the context ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            yield process.stdin, process.stdout
            with contextlib.suppress(OSError):
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        finally:
            process.kill()


def _await_none(find: Callable[[], list[str]]) -> list[str]:
    with contextlib.suppress(TimeoutError):
        return wait_until("the end of all that the run has started", find, _END_S, accept=lambda found: not found)
    return find()
