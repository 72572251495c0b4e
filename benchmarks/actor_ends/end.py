"""The interface of a compared program. Needs only the standard library and NumPy, as it runs beside each peer."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

__all__ = ["NAP_S", "PATIENCE_S", "Blocking", "End", "Missing", "Worker", "strike", "timed", "wait_asleep"]

PATIENCE_S = 60.0
NAP_S = 60
"""Sleep of an actor that is about to be killed, in seconds."""
_EXIT = ".exit"
"""Suffix of the file that makes a sleeping actor end its process."""


class Missing(Exception):
    """A feature that this peer lacks."""


class Worker:
    """The work of every actor; each end makes its own kind of actor from it."""

    def echo(self, value: object) -> object:
        """Return *value*: the measured call."""
        return value

    def touch(self, array: object) -> int:
        """Read a byte of each page of *array*."""
        return int(array[::4096].sum())  # type: ignore[index]

    def pid(self) -> int:
        """Return the id of this process."""
        return os.getpid()

    def cpu_s(self) -> float:
        """Return the CPU time of this process so far, of all threads."""
        return time.process_time()

    def nap(self, path: str) -> None:
        """Make the file *path*, so that the caller sees that the call has begun, and sleep; see `strike`."""
        open(path, "w").close()
        end_s = time.monotonic() + NAP_S
        while time.monotonic() < end_s:
            time.sleep(0.001)
            if os.path.exists(path + _EXIT):
                os._exit(3)


class End(ABC):
    """A program with procs of one actor each; the first actor is also measured alone."""

    @abstractmethod
    def start(self) -> None:
        """Start the runtime that makes procs."""

    @abstractmethod
    def spawn(self, num: int) -> None:
        """Make *num* procs with one actor each; return when all have answered a call."""

    @abstractmethod
    def stop(self) -> None:
        """End the procs."""

    @abstractmethod
    def echo(self, num: int) -> list[float]:
        """Seconds of each of *num* calls of the first actor, one after the other."""

    @abstractmethod
    def pipeline(self, num: int) -> float:
        """Seconds for *num* calls of the first actor, sent without waiting for answers."""

    @abstractmethod
    def call(self, num: int) -> list[float]:
        """Seconds of each of *num* calls of all actors."""

    @abstractmethod
    def chat(self, num: int) -> list[float]:
        """Seconds of each of *num* calls of the second actor by the first one."""

    @abstractmethod
    def push(self, array: object) -> float:
        """Seconds until the first actor has touched *array*."""

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes of the actors."""

    @abstractmethod
    def cpu_s(self) -> float:
        """CPU time of the first actor's process so far."""

    @abstractmethod
    def kill(self, path: str, how: str) -> float:
        """End the only proc during a call to `Worker.nap`, see `strike`; seconds until the call fails."""

    def crowd(self, numbers: range) -> None:
        """Make actors with *numbers* in the first actor's proc, each with a mailbox; return when all have answered."""
        raise Missing("an actor is a process")

    def waiting(self, num: int) -> list[float]:
        """Seconds of each of *num* calls of a coroutine of another actor in the first actor's proc."""
        raise Missing("no coroutines")

    def close(self) -> None:  # noqa: B027 -- most have nothing to do
        """Release what does not end with the processes."""

    def zygote(self) -> int:
        """The process from which the procs are forked; 0 if there is none."""
        return 0


class Blocking(End):
    """An end whose calls block the calling thread."""

    @abstractmethod
    def one(self, value: object) -> object:
        """Call `echo` of the first actor and wait."""

    @abstractmethod
    def all(self, value: object) -> object:
        """Call `echo` of all actors and wait."""

    def echo(self, num: int) -> list[float]:
        return timed(self.one, num)

    def call(self, num: int) -> list[float]:
        return timed(self.all, num)


def timed(call: Callable[[object], object], num: int) -> list[float]:
    """Seconds of each of *num* calls, one after the other."""
    clock = time.perf_counter
    took = []
    for number in range(num):
        begun_s = clock()
        call(number)
        took.append(clock() - begun_s)
    return took


def strike(pid: int, path: str, how: str) -> None:
    """End the process *pid*, whose actor is in `Worker.nap`: by a signal, or, if *how* is "exit", by `os._exit`."""
    if how == "exit":
        open(path + _EXIT, "w").close()
    else:
        os.kill(pid, getattr(signal, how))


def wait_asleep(path: str) -> None:
    """Wait until an actor is in `Worker.nap`.

    Raises:
        TimeoutError: the call did not begin in time.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not os.path.exists(path):
        if time.monotonic() > end_s:
            raise TimeoutError(f"the call that is to be interrupted did not begin within {PATIENCE_S:.0f} s")
        time.sleep(0.01)
    time.sleep(0.1)  # until the sender has finished sending, too
