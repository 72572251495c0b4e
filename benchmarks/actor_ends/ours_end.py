"""monarch-hpc: an embedded allocation on this machine."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import monarch_hpc
from benchmarks.actor_ends.end import Blocking, Worker, strike, timed, wait_asleep
from monarch_hpc import Actor, ActorDied, ActorMesh, Future, HostMesh, ProcMesh, endpoint

__all__ = ["OurEnd"]

_WINDOW = 256
"""Calls in flight: when a caller only sends, for longer than a millisecond, other threads preempt it."""


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
    def chat(self, other: ActorMesh[_Echo], num: int) -> list[float]:
        return timed(lambda value: other.echo.call_one(value).get(), num)


class _Waiting(Actor):
    @endpoint
    async def echo(self, value: object) -> object:
        return value


class OurEnd(Blocking):
    """The same calls as in a user's program."""

    _hosts: HostMesh
    _procs: ProcMesh
    _every: ActorMesh[_Echo]
    _first: ActorMesh[_Echo]
    _waiting: ActorMesh[_Waiting] | None
    _crowd: list[ActorMesh[_Echo | _Waiting]]

    def start(self) -> None:
        self._hosts = monarch_hpc.hosts()

    def spawn(self, num: int) -> None:
        self._procs = self._hosts.spawn_procs(per_host={"p": num})
        self._every = self._procs.spawn("echo", _Echo)
        self._first = self._every.slice(hosts=0, p=0)
        self._waiting = None
        self._crowd = []
        self.all(0)

    def stop(self) -> None:
        self._procs.stop()

    def one(self, value: object) -> object:
        return self._first.echo.call_one(value).get()

    def all(self, value: object) -> object:
        return self._every.echo.call(value).get()

    def pipeline(self, num: int) -> float:
        open_calls: deque[Future[object]] = deque()
        begun_s = time.perf_counter()
        for number in range(num):
            open_calls.append(self._first.echo.call_one(number))
            if len(open_calls) == _WINDOW:
                open_calls.popleft().get()
        for future in open_calls:
            future.get()
        return time.perf_counter() - begun_s

    def chat(self, num: int) -> list[float]:
        took: list[float] = self._first.chat.call_one(self._every.slice(hosts=0, p=1), num).get()
        return took

    def crowd(self, numbers: range) -> None:
        proc = self._procs.slice(hosts=0, p=0)
        crowd: list[ActorMesh[_Echo | _Waiting]] = [
            proc.spawn(f"idle {number}", _Waiting if number % 2 else _Echo) for number in numbers
        ]
        self._crowd.extend(crowd)
        for future in [actor.echo.call_one(0) for actor in crowd]:
            future.get()

    def waiting(self, num: int) -> list[float]:
        waiting = self._waiting = self._waiting or self._procs.slice(hosts=0, p=0).spawn("waiting", _Waiting)
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
        except ActorDied:
            return time.perf_counter() - begun_s
        raise AssertionError("a killed actor has answered")

    def zygote(self) -> int:
        """The zygote of the agent; the others of that name are about to become procs."""
        procs = set(self.pids())
        agents = {int(_status(pid, "PPid")) for pid in procs}
        found = [
            int(path.name)
            for path in Path("/proc").iterdir()
            if path.name.isdigit() and int(path.name) not in procs and _is_zygote(path, agents)
        ]
        return min(found)


def _status(pid: int, key: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(key + ":"))


def _is_zygote(path: Path, agents: set[int]) -> bool:
    try:
        return (path / "comm").read_text() == "monarch-zygote\n" and int(_status(int(path.name), "PPid")) in agents
    except (OSError, StopIteration):  # it has just ended
        return False
