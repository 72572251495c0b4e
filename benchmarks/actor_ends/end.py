"""What a program of the comparison can do. Needs Python's own library and NumPy only: it runs beside each peer."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

__all__ = ["NAP_S", "PATIENCE_S", "Blocking", "End", "Missing", "Worker", "wait_asleep"]

PATIENCE_S = 60.0
NAP_S = 60
"""How long an actor sleeps that is about to be killed."""


class Missing(Exception):
    """Something that this peer does not have."""


class Worker:
    """What every actor does; each end makes its own kind of actor of it."""

    def echo(self, value: object) -> object:
        """The call that is measured."""
        return value

    def touch(self, array: object) -> int:
        """Take an array, and read a byte of each page of it."""
        return int(array[::4096].sum())  # type: ignore[index]

    def pid(self) -> int:
        """The process that this runs in."""
        return os.getpid()

    def cpu_s(self) -> float:
        """CPU time of that process so far, of all its threads."""
        return time.process_time()

    def nap(self, path: str) -> None:
        """Say in a file that the call is here, and sleep."""
        open(path, "w").close()
        time.sleep(NAP_S)


class End(ABC):
    """A program and its actors: numbers of procs with one actor each. One of them, the first, is measured alone."""

    @abstractmethod
    def start(self) -> None:
        """Start whatever procs are made by."""

    @abstractmethod
    def spawn(self, num: int) -> None:
        """Make *num* procs with an actor each; return when all have answered a call."""

    @abstractmethod
    def stop(self) -> None:
        """End them."""

    @abstractmethod
    def echo(self, num: int) -> list[float]:
        """Seconds of each of *num* calls of the first actor, one after the other."""

    @abstractmethod
    def pipeline(self, num: int) -> float:
        """Seconds for *num* calls of the first actor, none of which waits for another."""

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
    def kill(self, path: str) -> float:
        """Kill the only proc while a call of it sleeps, see `Worker.nap`; seconds until the caller knows."""

    def close(self) -> None:  # noqa: B027 -- most have nothing to do
        """Leave nothing behind that the end of the processes does not end."""

    def zygote(self) -> int:
        """The process that the procs are forks of, or 0."""
        return 0


class Blocking(End):
    """An end whose calls block the thread that makes them."""

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


def wait_asleep(path: str) -> None:
    """Wait until an actor naps, see `Worker.nap`.

    Raises:
        TimeoutError: the call did not come.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not os.path.exists(path):
        if time.monotonic() > end_s:
            raise TimeoutError(f"the call that is to be interrupted did not begin within {PATIENCE_S:.0f} s")
        time.sleep(0.01)
    time.sleep(0.1)  # whoever sent it is done with it too
