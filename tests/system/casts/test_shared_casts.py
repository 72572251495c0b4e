"""Large casts, which come to each host once, into memory that its procs map."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, ProcMesh, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.casting import PATIENCE_S, cast_sender, until_over
from tests.system.support.controlling import controlled, settle

_BYTES = 2 << 20
_PER_HOST = 3


class Taker(Actor):
    """Takes arrays, and looks where they lie."""

    def __init__(self) -> None:
        self.kept: Any = None
        self.lines: list[int] = []

    @endpoint
    def take(self, data: Any) -> tuple[int, str]:
        self.kept = data
        return int(data.sum()), lies_in(data)

    @endpoint
    async def send_on(self, takers: ActorMesh[Taker], num_bytes: int) -> list[tuple[int, str]]:
        answers = await takers.take.call(np.ones(num_bytes, np.uint8))
        return answers.values()

    @endpoint
    def scribble(self, value: int) -> int:
        self.kept[:] = value
        return int(self.kept.sum())

    @endpoint
    def total(self) -> int:
        return int(self.kept.sum())

    @endpoint
    def line(self, number: int) -> None:
        self.lines.append(number)

    @endpoint
    def large_line(self, number: int, data: Any) -> None:
        assert data.nbytes == _BYTES
        self.lines.append(number)

    @endpoint
    def read_lines(self) -> list[int]:
        return self.lines

    @endpoint
    def forget(self) -> None:
        self.kept = None
        gc.collect()

    @endpoint
    def ancestors(self) -> list[int]:
        """This process, its zygote and its agent."""
        found: list[int] = []
        pid = os.getpid()
        while pid > 1 and b"monarch_hpc" in Path(f"/proc/{pid}/cmdline").read_bytes() and len(found) < 3:
            found.append(pid)
            pid = int(re.findall(r"PPid:\t(\d+)", Path(f"/proc/{pid}/status").read_text())[0])
        return found

    @endpoint
    def pid(self) -> int:
        return os.getpid()


def lies_in(data: Any) -> str:
    """The memory of an array or a tensor: ``private`` if it is mapped shared memory, ``own`` if it is ordinary."""
    where = int(data.data_ptr() if hasattr(data, "data_ptr") else data.__array_interface__["data"][0])
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, end = (int(part, 16) for part in line.split()[0].split("-"))
        if first <= where < end:
            return "private" if "memfd:monarch-hpc" in line and line.split()[1].endswith("p") else "own"
    return "nowhere"


def num_shared(pids: list[int]) -> int:
    """Open files and mappings of shareable memory in these processes."""
    num = 0
    for pid in pids:
        num += Path(f"/proc/{pid}/maps").read_text().count("/memfd:monarch-hpc-")
        for file in Path(f"/proc/{pid}/fd").iterdir():
            try:
                num += "memfd:monarch-hpc-" in os.readlink(file)
            except FileNotFoundError:
                pass
    return num


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": 0.5}).config) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    procs = hosts.spawn_procs({"gpus": _PER_HOST})
    settle(procs)
    takers = procs.spawn("first", Taker)
    takers.take.call(np.ones(_BYTES, np.uint8)).get(PATIENCE_S)  # opens the channels of casts
    takers.stop().get(PATIENCE_S)
    return procs


@pytest.fixture
def takers(procs: ProcMesh) -> Iterator[ActorMesh[Taker]]:
    takers = procs.spawn("taker", Taker)
    yield takers
    until_over()
    takers.stop().get(PATIENCE_S)


@pytest.fixture
def near(takers: ActorMesh[Taker]) -> ActorMesh[Taker]:
    """The takers of one host."""
    return takers.slice(hosts=0)


def test_each_proc_has_a_value_of_its_own(takers: ActorMesh[Taker]) -> None:
    data = np.ones(_BYTES, np.uint8)
    before = cast_sender().num_sent
    future = takers.take.call(data)
    data[:] = 9
    assert future.get(PATIENCE_S).values() == [(_BYTES, "private")] * 2 * _PER_HOST
    assert cast_sender().num_sent == before + 1
    first = takers.slice(hosts=0, gpus=0)
    assert first.scribble.call_one(3).get(PATIENCE_S) == 3 * _BYTES
    assert takers.total.call().get(PATIENCE_S).values() == [3 * _BYTES, *[_BYTES] * (2 * _PER_HOST - 1)]


def test_actors_cast_so_too(procs: ProcMesh, near: ActorMesh[Taker]) -> None:
    sender = procs.slice(hosts=1, gpus=0).spawn("sender", Taker)
    for _ in range(2):
        assert sender.send_on.call_one(near, _BYTES).get(PATIENCE_S) == [(_BYTES, "private")] * _PER_HOST
    sender.stop().get(PATIENCE_S)


def test_small_ones_and_those_to_one_proc_of_a_host_go_directly(takers: ActorMesh[Taker]) -> None:
    before = cast_sender().num_sent
    small, large = np.ones(1000, np.uint8), np.ones(_BYTES, np.uint8)
    takers.take.call(small).get(PATIENCE_S)
    assert takers.slice(gpus=0).take.call(large).get(PATIENCE_S).values() == [(_BYTES, "own")] * 2
    assert cast_sender().num_sent == before


def test_messages_keep_their_order(near: ActorMesh[Taker]) -> None:
    one, data = near.slice(gpus=1), np.zeros(_BYTES, np.uint8)
    for number in range(0, 30, 3):
        one.line.broadcast(number)
        near.large_line.broadcast(number + 1, data)
        near.line.broadcast(number + 2)
    assert one.read_lines.call_one().get(PATIENCE_S) == list(range(30))


def test_nothing_is_left_of_many(near: ActorMesh[Taker]) -> None:
    data = np.ones(_BYTES, np.uint8)
    near.take.call(data).get(PATIENCE_S)
    near.forget.call().get(PATIENCE_S)
    pids = sorted({pid for pids in near.ancestors.call().get(PATIENCE_S).values() for pid in pids})
    assert len(pids) >= _PER_HOST + 1
    for _ in range(30):
        near.take.call(data).get(PATIENCE_S)
    near.forget.call().get(PATIENCE_S)
    gc.collect()
    wait_until("all shared memory is given back", lambda: num_shared([os.getpid(), *pids]) == 0)


def test_a_host_pays_once(near: ActorMesh[Taker]) -> None:
    """Each page of the value is in memory once, and those that its readers do not write are all shared."""
    num_bytes = 16 << 20
    near.take.call(np.ones(num_bytes, np.uint8)).get(PATIENCE_S)
    files: dict[str, int] = {}
    private = 0
    for pid in near.pid.call().get(PATIENCE_S).values():
        text = Path(f"/proc/{pid}/smaps").read_text()
        for part in re.findall(r"memfd:monarch-hpc-(\w+).*?Private_Dirty: +(\d+) kB", text, re.DOTALL):
            files[part[0]] = files.get(part[0], 0) + 1
            private += int(part[1])
    assert list(files.values()) == [_PER_HOST] and private == 0


def test_a_proc_that_is_killed_takes_nothing_from_the_others(hosts: HostMesh, faults: list[MeshFailure]) -> None:
    with hosts.slice(hosts=0).spawn_procs({"gpus": 2}) as procs:
        takers = procs.spawn("taker", Taker)
        takers.take.call(np.ones(_BYTES, np.uint8)).get(PATIENCE_S)
        os.kill(takers.slice(gpus=0).pid.call_one().get(PATIENCE_S), signal.SIGKILL)
        wait_until("the failure", lambda: list(faults))
        assert takers.slice(gpus=1).total.call_one().get(PATIENCE_S) == _BYTES
