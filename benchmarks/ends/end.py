"""The interface of one of two measured processes; the other one runs the counterpart of the same name."""

from __future__ import annotations

import functools
import mmap
import resource
import time
from abc import ABC, abstractmethod

__all__ = ["End", "Missing", "Plain", "cpu_s", "cpu_share", "fresh", "written"]


class Missing(Exception):
    """A requirement of this row is missing on this machine."""


class End(ABC):
    """One end of a pair: the near end measures, the far end answers."""

    @abstractmethod
    def open(self, address: str) -> str:
        """Connect to the far end at *address*; the far end gets "" and returns its address."""

    @abstractmethod
    def ping(self, num: int, nbytes: int) -> list[float]:
        """Near: the time of each of *num* round trips of *nbytes* bytes, in seconds. Far: answers; empty."""

    @abstractmethod
    def pour(self, num: int, nbytes: int) -> float:
        """Near: seconds until the far end has *num* messages of *nbytes* bytes. Far: receives them; returns 0."""

    def hold(self, nbytes: int) -> str:
        """Far: register this much memory; return its key, or "" if the row has no registered memory."""
        return ""

    def fetch(self, key: str, num: int, nbytes: int) -> float:
        """Near: seconds for *num* gets of all of it."""
        raise Missing("no get")

    def store(self, key: str, num: int, nbytes: int) -> float:
        """Near: seconds for *num* puts of all of it."""
        raise Missing("no put")

    @abstractmethod
    def idle(self, seconds: float) -> float:
        """CPU used while idle for this long, as a share of one core."""


@functools.cache
def written(nbytes: int, name: str = "") -> memoryview:
    """The memory of a process for all its messages of one size: later rounds find its pages in place.

    Args:
        name: tells memories of one size apart.
    """
    return fresh(nbytes)


def fresh(nbytes: int) -> memoryview:
    """Memory that has been written to, in huge pages if available, so that page faults are not measured."""
    mapped = mmap.mmap(-1, max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= 2**21:
        try:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass
    view = memoryview(mapped)[:nbytes]
    step = 2**20
    block = bytes(range(256)) * (step // 256)
    for at in range(0, nbytes, step):
        part = view[at : at + step]
        part[:] = block[: len(part)]
    return view


def cpu_share(begun_s: float, used_s: float) -> float:
    """CPU time since *used_s*, over wall time since *begun_s*."""
    return (cpu_s() - used_s) / (time.perf_counter() - begun_s)


def cpu_s() -> float:
    """CPU time of this process so far, of all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class Plain(End):
    """An end that sends and receives messages of known length, one at a time."""

    def __init__(self, *, near: bool) -> None:
        self.near = near

    @abstractmethod
    def send(self, data: memoryview) -> None:
        """Send one message."""

    @abstractmethod
    def receive(self, into: memoryview) -> None:
        """Receive one message, as long as *into*."""

    def ping(self, num: int, nbytes: int) -> list[float]:
        data, into = written(nbytes), written(nbytes, "received")
        if not self.near:
            self.send(data[:1])  # ready
            for _ in range(num):
                self.receive(into)
                self.send(data)
            return []
        self.receive(into[:1])
        took = []
        clock = time.perf_counter
        for _ in range(num):
            begun_s = clock()
            self.send(data)
            self.receive(into)
            took.append(clock() - begun_s)
        return took

    def pour(self, num: int, nbytes: int) -> float:
        data = written(nbytes)
        if not self.near:
            self.send(data[:1])
            for _ in range(num):
                self.receive(data)
            self.send(data[:1])
            return 0.0
        byte = fresh(1)
        self.receive(byte)
        begun_s = time.perf_counter()
        for _ in range(num):
            self.send(data)
        self.receive(byte)
        return time.perf_counter() - begun_s

    def idle(self, seconds: float) -> float:
        byte = fresh(1)
        if not self.near:
            time.sleep(seconds)
            self.send(byte)
            return 0.0
        begun_s, used_s = time.perf_counter(), cpu_s()
        self.receive(byte)
        return cpu_share(begun_s, used_s)
