"""torch.distributed.rpc: a world of processes with an object in each."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from typing import Any

import torch
from torch.distributed import rpc

from benchmarks.actor_ends.end import Blocking, Worker, strike, timed, wait_asleep

__all__ = ["RpcEnd"]

_THREADS = 16


class _Echo(Worker):
    def chat(self, other: str, num: int) -> list[float]:
        return timed(lambda value: rpc.rpc_sync(other, _echo, (value,)), num)


_ACTOR = _Echo()
"""The object of this process."""


def _echo(value: object) -> object:
    return _ACTOR.echo(value)


def _do(name: str, *argument: object) -> Any:
    return getattr(_ACTOR, name)(*argument)


def _join(name: str, rank: int, size: int, port: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=_THREADS, init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(name, rank=rank, world_size=size, rpc_backend_options=options)


def _run(name: str, rank: int, size: int, port: int) -> None:
    torch.set_num_threads(1)
    _join(name, rank, size, port)
    rpc.shutdown()


class RpcEnd(Blocking):
    """Each `spawn` makes a new world, since a world cannot grow."""

    def start(self) -> None:
        torch.set_num_threads(1)
        os.environ["TP_SOCKET_IFNAME"] = "lo"
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"

    def spawn(self, num: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        context = multiprocessing.get_context("spawn")
        # New names each time: this process counts operations for each set of names, and new sets begin at 0.
        self._names = [f"w{index}-{port}" for index in range(num)]
        self._processes = [
            context.Process(target=_run, args=(name, rank, num + 1, port)) for rank, name in enumerate(self._names, 1)
        ]
        for process in self._processes:
            process.start()
        # All processes must have made the same number of worlds before; the new ones have made none.
        rpc._init_counter = 0
        _join("near", 0, num + 1, port)
        self.all(0)

    def stop(self) -> None:
        # A graceful shutdown needs processes that have all made the same number of worlds.
        rpc.shutdown(graceful=False)
        for process in self._processes:
            process.kill()
            process.join()

    def one(self, value: object) -> object:
        return rpc.rpc_sync(self._names[0], _echo, (value,))

    def all(self, value: object) -> object:
        return [future.wait() for future in [rpc.rpc_async(name, _echo, (value,)) for name in self._names]]

    def pipeline(self, num: int) -> float:
        begun_s = time.perf_counter()
        for future in [rpc.rpc_async(self._names[0], _echo, (number,)) for number in range(num)]:
            future.wait()
        return time.perf_counter() - begun_s

    def chat(self, num: int) -> list[float]:
        took: list[float] = rpc.rpc_sync(self._names[0], _do, ("chat", self._names[1], num))
        return took

    def push(self, array: object) -> float:
        # Only tensors are sent without pickling.
        tensor = torch.from_numpy(array)
        begun_s = time.perf_counter()
        rpc.rpc_sync(self._names[0], _do, ("touch", tensor))
        return time.perf_counter() - begun_s

    def pids(self) -> list[int]:
        return [int(process.pid) for process in self._processes if process.pid]

    def cpu_s(self) -> float:
        return float(rpc.rpc_sync(self._names[0], _do, ("cpu_s",)))

    def kill(self, path: str, how: str) -> float:
        pid = self.pids()[0]
        pending = rpc.rpc_async(self._names[0], _do, ("nap", path))
        wait_asleep(path)
        begun_s = time.perf_counter()
        strike(pid, path, how)
        try:
            pending.wait()
        except RuntimeError:
            return time.perf_counter() - begun_s
        raise AssertionError("a killed process has answered")
