"""PyTorch Monarch, from its wheel."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import monarch.actor
from monarch.actor import Actor, endpoint

from benchmarks.actor_ends.end import Blocking, Worker, strike, timed, wait_asleep

__all__ = ["MonarchEnd"]

_BURST = 512
"""Calls in flight: with more of them Monarch becomes slower."""


class _Echo(Actor):
    def __init__(self) -> None:
        self._work = Worker()

    @endpoint
    def echo(self, value: object) -> object:
        return value

    @endpoint
    def touch(self, array: object) -> int:
        return self._work.touch(array)

    @endpoint
    def pid(self) -> int:
        return self._work.pid()

    @endpoint
    def cpu_s(self) -> float:
        return self._work.cpu_s()

    @endpoint
    def nap(self, path: str) -> None:
        self._work.nap(path)

    @endpoint
    def chat(self, other: Any, num: int) -> list[float]:
        return timed(lambda value: other.echo.call_one(value).get(), num)


class _Waiting(Actor):
    @endpoint
    async def echo(self, value: object) -> object:
        return value


class MonarchEnd(Blocking):
    """Synchronous endpoints and calls, its fastest ones; pipelined calls with asyncio, which is faster than `get`."""

    def start(self) -> None:
        # By default the first death interrupts the program.
        monarch.actor.unhandled_fault_hook = lambda failure: None
        self._host = monarch.actor.this_host()

    def spawn(self, num: int) -> None:
        self._procs = self._host.spawn_procs(per_host={"p": num})
        self._every = self._procs.spawn("echo", _Echo)
        self._first = self._every.slice(p=0)
        self._waiting: Any = None
        self._crowd: list[Any] = []
        self.all(0)

    def stop(self) -> None:
        self._procs.stop().get()

    def one(self, value: object) -> object:
        return self._first.echo.call_one(value).get()

    def all(self, value: object) -> object:
        return self._every.echo.call(value).get()

    def pipeline(self, num: int) -> float:
        async def send_all() -> None:
            for begin in range(0, num, _BURST):
                numbers = range(begin, min(num, begin + _BURST))
                await asyncio.gather(*[self._first.echo.call_one(number) for number in numbers])

        begun_s = time.perf_counter()
        asyncio.run(send_all())
        return time.perf_counter() - begun_s

    def chat(self, num: int) -> list[float]:
        return list(self._first.chat.call_one(self._every.slice(p=1), num).get())

    def crowd(self, numbers: range) -> None:
        proc = self._procs.slice(p=0)
        crowd = [proc.spawn(f"idle{number}", (_Echo, _Waiting)[number % 2]) for number in numbers]
        self._crowd.extend(crowd)
        for future in [actor.echo.call_one(0) for actor in crowd]:
            future.get()

    def waiting(self, num: int) -> list[float]:
        waiting = self._waiting = self._waiting or self._procs.slice(p=0).spawn("waiting", _Waiting)
        return timed(lambda value: waiting.echo.call_one(value).get(), num)

    def push(self, array: object) -> float:
        begun_s = time.perf_counter()
        self._first.touch.call_one(array).get()
        return time.perf_counter() - begun_s

    def pids(self) -> list[int]:
        return list(self._every.pid.call().get().values())

    def cpu_s(self) -> float:
        return float(self._first.cpu_s.call_one().get())

    def kill(self, path: str, how: str) -> float:
        pid = self._first.pid.call_one().get()
        pending = self._first.nap.call_one(path)
        wait_asleep(path)
        begun_s = time.perf_counter()
        strike(pid, path, how)
        try:
            pending.get()
        except Exception:  # noqa: BLE001 -- which one differs with the moment
            return time.perf_counter() - begun_s
        raise AssertionError("a killed actor has answered")
