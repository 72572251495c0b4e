"""The interface of a program that is asked what it tells. Needs only the standard library, as it runs beside peers."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

__all__ = ["FAULTS", "HOLD_S", "EndpointsEnd", "Missing", "SeeingEnd", "Worker", "pids_of"]

FAULTS = ("stopped", "holds the GIL", "killed", "job ended")
"""Faults of a proc that is asked about, in this order, each in a program of its own."""

HOLD_S = 60
_SETTLE_S = 3.0
"""Peers send what they recorded once a second."""
_NOTICE_S = 12.0
"""Torchmonarch notices a death after ten seconds."""


class Missing(Exception):
    """A feature that this peer lacks."""


class Worker:
    """What the actor does; each end makes its own kind of actor from it."""

    def echo(self, value: int) -> int:
        """Return *value*: the call that is recorded."""
        return value

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def cpu_s(self) -> float:
        """Return the CPU time of this process so far, of all threads."""
        return time.process_time()

    def hold_gil(self) -> None:
        """Sleep in C with the interpreter's lock held."""
        ctypes.PyDLL(None).sleep(HOLD_S)


class SeeingEnd(ABC):
    """A program with one actor in a process of its own, which records calls or does not."""

    @abstractmethod
    def start(self, *, recording: bool) -> None:
        """Start the runtime and the actor; return when it has answered a call."""

    @abstractmethod
    def echo(self, num: int) -> None:
        """Call the actor, one call after the other."""

    @abstractmethod
    def cpu_s(self) -> float:
        """CPU time of the actor's process so far."""

    @abstractmethod
    def pid(self) -> int:
        """The actor's process."""

    @abstractmethod
    def hold_gil(self) -> None:
        """Have the actor hold the interpreter's lock; do not wait for it."""

    @abstractmethod
    def state(self) -> str:
        """What the product says of the actor, or of its process, in a few words."""

    def fill(self, num: int) -> None:
        """Make calls as fast as the peer allows; return when all can be asked about."""
        self.echo(num)

    def count(self) -> int:
        """Ask the shortest question in SQL."""
        raise Missing("no SQL")

    def group(self) -> int:
        """Ask for calls by endpoint, with GROUP BY in SQL; return the number of calls of `echo` in the answer."""
        raise Missing("no SQL")

    def helpers(self) -> list[int]:
        """The processes that only serve questions."""
        raise Missing("no processes of its own")

    def crowd(self, num: int) -> None:
        """Make as many actors, each in a process of its own; return when all have answered."""
        raise Missing("no actors of that kind")

    def listing(self) -> list[str]:
        """The command that lists all actors."""
        raise Missing("no command")

    def num_calls(self) -> int:
        """The number of calls of `echo` that the product tells of."""
        raise Missing("no calls")

    def stack(self) -> str:
        """The stack of the actor's process, as text."""
        raise Missing("no stacks")

    def finish(self) -> None:
        """End the job, so that the product is asked afterwards."""
        raise Missing("not tried")

    def inflict(self, fault: str) -> None:
        """Let one of `FAULTS` happen, and give the product time to notice."""
        pid = self.pid()
        time.sleep(_SETTLE_S)
        if fault == "stopped":
            os.kill(pid, signal.SIGSTOP)
        elif fault == "holds the GIL":
            self.hold_gil()
        elif fault == "killed":
            os.kill(pid, signal.SIGKILL)
            time.sleep(_NOTICE_S - _SETTLE_S)
        else:
            self.finish()
        time.sleep(_SETTLE_S)

    def close(self) -> None:  # noqa: B027 -- most have nothing to do
        """Release what does not end with the processes."""


class EndpointsEnd(SeeingEnd):
    """One whose actor has endpoints, as Monarch's and ours have: `_actor`, a mesh of one."""

    _actor: Any

    def echo(self, num: int) -> None:
        for number in range(num):
            self._actor.echo.call_one(number).get()

    def cpu_s(self) -> float:
        return float(self._actor.cpu_s.call_one().get())

    def pid(self) -> int:
        return int(self._actor.pid.call_one().get())

    def hold_gil(self) -> None:
        self._held = self._actor.hold_gil.call_one()


def pids_of(*marks: str) -> list[int]:
    """The processes of this program, below it or with its ``TMPDIR``, with one of *marks* in the command line."""
    own, found = f"TMPDIR={os.environ['TMPDIR']}".encode(), []
    parents, owned = dict[int, int](), {os.getpid()}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            pid = int(path.name)
            parents[pid] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if own in (path / "environ").read_bytes().split(b"\0"):
                owned.add(pid)
            if any(mark in words for mark in marks):
                found.append(pid)
        except OSError:  # it has ended, or is another user's
            continue
    return [pid for pid in found if owned & _line(pid, parents)]


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    """A process and those above it."""
    line = set()
    while pid in parents and pid not in line:
        line.add(pid)
        pid = parents[pid]
    return line
