"""Actors for tests of casts, and a configuration in which a few of them already count as many."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace

import numpy as np
import pytest

import monarch_hpc
from monarch_hpc import Actor, HostMesh, ProcMesh, endpoint
from monarch_hpc.actor.casts.sender import CastSender
from monarch_hpc.config.load import load
from monarch_hpc.config.schema import Config
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import settle

__all__ = ["NUM", "NUM_HOSTS", "PATIENCE_S", "PER_HOST", "Log", "cast_sender", "casting", "procs", "until_over"]

PATIENCE_S = 60.0
NUM_HOSTS = 5
PER_HOST = 2
NUM = NUM_HOSTS * PER_HOST

_gates: dict[str, threading.Event] = {}


def gate(name: str) -> threading.Event:
    """Return a named event of this process."""
    return _gates.setdefault(name, threading.Event())


class Log(Actor):
    """Logs its calls in order."""

    def __init__(self) -> None:
        self.lines: list[object] = []

    @endpoint
    def write(self, line: object) -> int:
        self.lines.append(line)
        return len(self.lines)

    @endpoint
    def read(self) -> list[object]:
        return self.lines

    @endpoint
    def rank(self) -> int:
        return monarch_hpc.context().proc.rank

    @endpoint
    def invert(self, offset: int) -> float:
        return 1 / (monarch_hpc.context().proc.rank - offset)

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def wait(self, name: str) -> None:
        assert gate(name).wait(PATIENCE_S)

    @endpoint
    def open(self, name: str) -> None:
        gate(name).set()

    @endpoint
    def wait_unless(self, rank: int, name: str) -> int:
        if monarch_hpc.context().proc.rank != rank:
            assert gate(name).wait(PATIENCE_S)
        return monarch_hpc.context().proc.rank

    @endpoint
    async def linger(self) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            self.lines.append("cancelled")
            raise

    @endpoint
    def zeros(self, num_bytes: int) -> np.ndarray:
        return np.full(num_bytes, monarch_hpc.context().proc.rank, np.uint8)

    @endpoint
    def total(self, data: np.ndarray) -> int:
        return int(data.sum())

    @endpoint
    def take(self, data: np.ndarray) -> None:
        self.lines.append(data.nbytes)


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs on each of the module's hosts."""
    procs = hosts.spawn_procs(per_host={"gpus": PER_HOST})
    settle(procs)
    return procs


def casting(**transport: int) -> Config:
    """Configure casts for more than two procs, through a tree with a fan-out of two."""
    loaded = load({"heal.tries": 0}).config
    return replace(loaded, transport=replace(loaded.transport, cast_direct=2, cast_fanout=2, **transport))


def cast_sender() -> CastSender:
    """Return the sender of this process's casts."""
    return Controller.instance().casts


def until_over() -> None:
    """Wait until this process has no cast in flight."""
    wait_until(
        "all casts to be over", lambda: len(cast_sender().in_flight.casts), PATIENCE_S, accept=lambda num: not num
    )
