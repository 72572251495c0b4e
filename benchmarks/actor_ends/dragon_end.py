"""Dragon: it has no actors, so a process that answers on a pipe stands for one. Started by Dragon's launcher."""

from __future__ import annotations

import multiprocessing
import time
from typing import Any

import dragon  # noqa: F401 -- gives multiprocessing a start method

from benchmarks.actor_ends.end import Blocking, Worker, strike, timed, wait_asleep

__all__ = ["DragonEnd"]

_WINDOW = 64
"""Calls in flight: a pipe holds about a hundred, and when both are full, both ends block."""


class _Echo(Worker):
    def __init__(self, other: Any, served: Any) -> None:
        self._other = other
        self._served = served

    def chat(self, num: int) -> list[float]:
        def call(value: object) -> object:
            self._other.send(value)
            return self._other.recv()

        return timed(call, num)

    def serve(self, num: int) -> None:
        for _ in range(num):
            self._served.send(self._served.recv())


def _run(calls: Any, other: Any, served: Any) -> None:
    actor = _Echo(other, served)
    while True:
        name, argument = calls.recv()
        calls.send(getattr(actor, name)(*argument))


class DragonEnd(Blocking):
    """`multiprocessing` over Dragon."""

    def start(self) -> None:
        multiprocessing.set_start_method("dragon")

    def spawn(self, num: int) -> None:
        other, served = multiprocessing.Pipe()
        pipes = [multiprocessing.Pipe() for _ in range(num)]
        self._kept = other, served, pipes  # a pipe is closed with the object that made it
        self._pipes = [near for near, _ in pipes]
        self._processes = [multiprocessing.Process(target=_run, args=(far, other, served)) for _, far in pipes]
        for process in self._processes:
            process.start()
        self.all(0)

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()

    def _ask(self, name: str, *argument: object) -> Any:
        self._pipes[0].send((name, argument))
        return self._pipes[0].recv()

    def _ask_all(self, name: str, *argument: object) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((name, argument))
        return [pipe.recv() for pipe in self._pipes]

    def one(self, value: object) -> object:
        return self._ask("echo", value)

    def all(self, value: object) -> object:
        return self._ask_all("echo", value)

    def pipeline(self, num: int) -> float:
        pipe = self._pipes[0]
        begun_s = time.perf_counter()
        for number in range(num):
            if number >= _WINDOW:
                pipe.recv()
            pipe.send(("echo", (number,)))
        for _ in range(min(num, _WINDOW)):
            pipe.recv()
        return time.perf_counter() - begun_s

    def chat(self, num: int) -> list[float]:
        self._pipes[1].send(("serve", (num,)))
        took: list[float] = self._ask("chat", num)
        self._pipes[1].recv()
        return took

    def push(self, array: object) -> float:
        begun_s = time.perf_counter()
        self._ask("touch", array)
        return time.perf_counter() - begun_s

    def pids(self) -> list[int]:
        return self._ask_all("pid")

    def cpu_s(self) -> float:
        return float(self._ask("cpu_s"))

    def kill(self, path: str, how: str) -> float:
        """End the proc; a pipe does not report a death, so the caller must wait for the process, too."""
        pid = self._ask("pid")
        self._pipes[0].send(("nap", (path,)))
        wait_asleep(path)
        begun_s = time.perf_counter()
        strike(pid, path, how)
        self._processes[0].join()
        return time.perf_counter() - begun_s

    def close(self) -> None:
        self.stop()
