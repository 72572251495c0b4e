"""Xoscar: a pool of processes with one actor each, called from a coroutine."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import xoscar
from xoscar.backends.allocate_strategy import ProcessIndex

from benchmarks.actor_ends.end import End, Worker, strike, wait_asleep

__all__ = ["XoscarEnd"]

T = TypeVar("T")


async def _timed(call: Callable[[object], Awaitable[object]], num: int) -> list[float]:
    clock = time.perf_counter
    took = []
    for number in range(num):
        begun_s = clock()
        await call(number)
        took.append(clock() - begun_s)
    return took


class _Echo(xoscar.Actor):
    def __init__(self) -> None:
        self._work = Worker()

    def echo(self, value: object) -> object:
        return value

    def touch(self, array: object) -> int:
        return self._work.touch(array)

    def pid(self) -> int:
        return self._work.pid()

    def cpu_s(self) -> float:
        return self._work.cpu_s()

    def nap(self, path: str) -> None:
        self._work.nap(path)

    async def chat(self, other: Any, num: int) -> list[float]:
        return await _timed(other.echo, num)


class _Waiting(xoscar.Actor):
    async def echo(self, value: object) -> object:
        return value


class XoscarEnd(End):
    """Each `spawn` makes a pool of processes, as a program that needs processes does."""

    def start(self) -> None:
        try:
            import uvloop
        except ImportError:
            self._loop = asyncio.new_event_loop()
        else:
            self._loop = uvloop.new_event_loop()
        asyncio.set_event_loop(self._loop)

    def _run(self, work: Awaitable[T]) -> T:
        return self._loop.run_until_complete(work)

    def spawn(self, num: int) -> None:
        self._run(self._spawn(num))

    async def _spawn(self, num: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self._pool = await xoscar.create_actor_pool(address, n_process=num)
        self._actors = await asyncio.gather(
            *[
                xoscar.create_actor(_Echo, address=address, uid=f"echo{index}", allocate_strategy=ProcessIndex(index))
                for index in range(1, num + 1)
            ]
        )
        self._address = address
        self._waiting: Any = None
        await self._all(0)

    def stop(self) -> None:
        self._run(self._pool.stop())

    async def _all(self, value: object) -> list[object]:
        return list(await asyncio.gather(*[actor.echo(value) for actor in self._actors]))

    def echo(self, num: int) -> list[float]:
        return self._run(_timed(self._actors[0].echo, num))

    def call(self, num: int) -> list[float]:
        return self._run(_timed(self._all, num))

    def pipeline(self, num: int) -> float:
        async def send_all() -> float:
            begun_s = time.perf_counter()
            await asyncio.gather(*[self._actors[0].echo(number) for number in range(num)])
            return time.perf_counter() - begun_s

        return self._run(send_all())

    def chat(self, num: int) -> list[float]:
        return list(self._run(self._actors[0].chat(self._actors[1], num)))

    def crowd(self, numbers: range) -> None:
        async def make() -> None:
            first = ProcessIndex(1)
            crowd = [
                await xoscar.create_actor(
                    (_Echo, _Waiting)[number % 2],
                    address=self._address,
                    uid=f"idle{number}",
                    allocate_strategy=first,
                )
                for number in numbers
            ]
            await asyncio.gather(*[actor.echo(0) for actor in crowd])

        self._run(make())

    def waiting(self, num: int) -> list[float]:
        async def wait() -> list[float]:
            if self._waiting is None:
                self._waiting = await xoscar.create_actor(
                    _Waiting, address=self._address, uid="waiting", allocate_strategy=ProcessIndex(1)
                )
            return await _timed(self._waiting.echo, num)

        return self._run(wait())

    def push(self, array: object) -> float:
        async def push() -> float:
            begun_s = time.perf_counter()
            await self._actors[0].touch(array)
            return time.perf_counter() - begun_s

        return self._run(push())

    def pids(self) -> list[int]:
        async def ask() -> list[Any]:
            return list(await asyncio.gather(*[actor.pid() for actor in self._actors]))

        return self._run(ask())

    def cpu_s(self) -> float:
        async def ask() -> float:
            return float(await self._actors[0].cpu_s())

        return self._run(ask())

    def kill(self, path: str, how: str) -> float:
        return self._run(self._kill(path, how))

    async def _kill(self, path: str, how: str) -> float:
        pid = await self._actors[0].pid()
        pending = asyncio.ensure_future(self._actors[0].nap(path))
        await asyncio.to_thread(wait_asleep, path)
        begun_s = time.perf_counter()
        strike(pid, path, how)
        try:
            await pending
        except Exception:  # noqa: BLE001 -- which one differs with the moment
            return time.perf_counter() - begun_s
        raise AssertionError("a killed actor has answered")
