"""Ray: a private cluster on this machine."""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

import ray

from benchmarks.actor_ends.end import Blocking, Worker, strike, timed, wait_asleep

__all__ = ["RayEnd"]

_NUM_CPUS = 128
"""More than this machine has: more actors than cores are to run here."""


class _Worker(Worker):
    def chat(self, other: Any, num: int) -> list[float]:
        return timed(lambda value: ray.get(other.echo.remote(value)), num)


_Echo: Any = ray.remote(num_cpus=1, max_restarts=0)(_Worker)


class RayEnd(Blocking):
    """Actors by handles, answers by `ray.get`."""

    def start(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        ray.init(
            num_cpus=_NUM_CPUS,
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=2 * 2**30,
            _node_ip_address="127.0.0.1",
            _temp_dir=tempfile.gettempdir(),
        )

    def spawn(self, num: int) -> None:
        self._actors = [_Echo.remote() for _ in range(num)]
        self.all(0)

    def stop(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    def one(self, value: object) -> object:
        return ray.get(self._actors[0].echo.remote(value))

    def all(self, value: object) -> object:
        return ray.get([actor.echo.remote(value) for actor in self._actors])

    def pipeline(self, num: int) -> float:
        begun_s = time.perf_counter()
        ray.get([self._actors[0].echo.remote(number) for number in range(num)])
        return time.perf_counter() - begun_s

    def chat(self, num: int) -> list[float]:
        return list(ray.get(self._actors[0].chat.remote(self._actors[1], num)))

    def push(self, array: object) -> float:
        begun_s = time.perf_counter()
        ray.get(self._actors[0].touch.remote(array))
        return time.perf_counter() - begun_s

    def pids(self) -> list[int]:
        return list(ray.get([actor.pid.remote() for actor in self._actors]))

    def cpu_s(self) -> float:
        return float(ray.get(self._actors[0].cpu_s.remote()))

    def kill(self, path: str, how: str) -> float:
        pid = ray.get(self._actors[0].pid.remote())
        pending = self._actors[0].nap.remote(path)
        wait_asleep(path)
        begun_s = time.perf_counter()
        strike(pid, path, how)
        try:
            ray.get(pending)
        except ray.exceptions.RayActorError:
            return time.perf_counter() - begun_s
        raise AssertionError("a killed actor has answered")

    def close(self) -> None:
        ray.shutdown()
