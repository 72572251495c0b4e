"""Transfers whose other end is killed or stopped in the middle, and thousands of registrations: nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from monarch_hpc import Actor, ActorMesh, HostMesh, MeshFailure, MonarchError, ProcDied, endpoint
from monarch_hpc.actor.context import context
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.core.machine.procfs import read_resident_bytes, read_stat
from monarch_hpc.rdma import RDMABuffer
from monarch_hpc.rdma.lending import _lent
from monarch_hpc.testing import wait_until
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
_GUARD = 64
_BYTES = 3_000_001
_CYCLES = int(os.environ.get("CYCLES", "1000"))


class Party(Actor):
    """Lends guarded memory, and reads and writes that of others until it is stopped."""

    @endpoint
    def make(self) -> RDMABuffer:
        self._memory = np.full(_BYTES + 2 * _GUARD, 0xA5, np.uint8)
        return RDMABuffer(self._memory[_GUARD : _GUARD + _BYTES])

    @endpoint
    def whole(self) -> bool:
        return bool((self._memory[:_GUARD] == 0xA5).all() and (self._memory[-_GUARD:] == 0xA5).all())

    @endpoint
    async def use(self, buffer: RDMABuffer, begun: RDMABuffer) -> None:
        """Write and read without end; say in *begun* that it has begun."""
        here = np.zeros(_BYTES, np.uint8)
        for number in range(1_000_000):
            await buffer.write_from(here)
            await buffer.read_into(here)
            if number == 1:
                await begun.write_from(np.ones(1, np.uint8))

    @endpoint
    def cycle(self, num: int) -> tuple[int, int, int]:
        """Lend and drop that many times; return the growth of memory in bytes, descriptors, and what is noted."""
        array = np.zeros(100_000)
        for number in range(num + 200):
            if number == 200:
                before = read_resident_bytes(os.getpid()), len(os.listdir("/proc/self/fd"))
            RDMABuffer(array).drop().get(_PATIENCE_S)
        after = read_resident_bytes(os.getpid()), len(os.listdir("/proc/self/fd"))
        memories = current_runtime().node.own_memory.memories._memories
        num_noted = len(memories) + sum(map(len, _lent.values())) + len(context().resources) - 1
        return after[0] - before[0], after[1] - before[1], num_noted

    @endpoint
    async def read(self, buffer: RDMABuffer) -> str:
        """The error of a read, if there is one."""
        try:
            await buffer.read_into(np.zeros(_BYTES, np.uint8))
        except MonarchError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    @endpoint
    def keep_open(self) -> tuple[int, int]:
        """Start a process that keeps the sockets of this one open; return its pid, and that of the own parent."""
        links = {int(entry.name): entry for entry in Path("/proc/self/fd").iterdir()}
        sockets = [fd for fd, entry in links.items() if entry.is_symlink() and "socket" in os.readlink(entry)]
        return subprocess.Popen(["sleep", "600"], pass_fds=sockets).pid, os.getppid()

    @endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module", params=["cma", "ucx", "tcp"])
def hosts(request: pytest.FixtureRequest) -> Iterator[HostMesh]:
    overrides: dict[str, object]
    order = {"cma": ["cma", "tcp"], "ucx": ["ucx", "tcp"], "tcp": ["tcp"]}
    overrides = {"procs.stop_s": 0.5, "fabric.order": order[request.param]}
    if request.param == "ucx":  # over tcp: a process that dies while it writes to shared memory harms its neighbours
        overrides |= {"ucx.transports": "tcp,self", "fabric.trusted": True}
    with controlled(load(overrides).config) as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


@pytest.fixture
def parties(hosts: HostMesh, faults: list[MeshFailure]) -> Iterator[ActorMesh[Party]]:
    """An owner, and one who uses its memory."""
    with hosts.slice(hosts=0).spawn_procs({"gpus": 2}) as procs:
        settle(procs)
        yield procs.spawn("party", Party)


def in_use(parties: ActorMesh[Party]) -> tuple[RDMABuffer, int]:
    """A buffer of the first party that the second uses all the time, and the pid of that."""
    owner, user = parties.slice(gpus=0), parties.slice(gpus=1)
    buffer, pid = owner.make.call_one().get(_PATIENCE_S), user.pid.call_one().get(_PATIENCE_S)
    begun = np.zeros(1, np.uint8)
    flag = RDMABuffer(begun)
    user.use.broadcast(buffer, flag)
    wait_until("the transfers", lambda: bool(begun[0]), _PATIENCE_S)
    flag.drop().get(_PATIENCE_S)
    return buffer, pid


def halt(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    wait_until("the stop", lambda: read_stat(pid), accept=lambda stat: stat is not None and stat.state == "T")


def test_a_user_that_is_killed_in_the_middle_leaves_the_memory_whole_and_free(
    parties: ActorMesh[Party], faults: list[MeshFailure]
) -> None:
    buffer, pid = in_use(parties)
    os.kill(pid, signal.SIGKILL)
    buffer.drop().get(_PATIENCE_S)
    assert parties.slice(gpus=0).whole.call_one().get(_PATIENCE_S)
    wait_until("the failure", lambda: list(faults), timeout_s=_PATIENCE_S)


def test_a_user_that_is_stopped_in_the_middle_delays_the_end_of_the_memory(
    parties: ActorMesh[Party], faults: list[MeshFailure]
) -> None:
    buffer, pid = in_use(parties)
    halt(pid)
    dropped = buffer.drop()
    with pytest.raises(TimeoutError):
        dropped.get(0.2)
    os.kill(pid, signal.SIGCONT)
    dropped.get(_PATIENCE_S)
    assert parties.slice(gpus=0).whole.call_one().get(_PATIENCE_S)
    wait_until("the failure", lambda: list(faults), timeout_s=_PATIENCE_S)  # its endpoint's next transfer


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_an_owner_that_ends_in_the_middle_costs_no_more_than_the_time_limit(
    parties: ActorMesh[Party], faults: list[MeshFailure], end: signal.Signals
) -> None:
    owner = parties.slice(gpus=0)
    buffer, pid = owner.make.call_one().get(_PATIENCE_S), owner.pid.call_one().get(_PATIENCE_S)
    memory = np.full(_BYTES + 2 * _GUARD, 0xA5, np.uint8)
    here = memory[_GUARD : _GUARD + _BYTES]
    buffer.read_into(here).get(_PATIENCE_S)
    # The cause of a death comes first, also on a busy machine; a stopped owner costs all of the limit.
    limit_s = 30.0 if end is signal.SIGKILL else 2.0
    worst_s, errors = [0.0], []
    ended, enough = threading.Event(), threading.Event()

    def use() -> None:
        for _ in range(1_000_000):
            began_s = time.monotonic()
            try:
                buffer.read_into(here, timeout=limit_s).get(_PATIENCE_S)
            except (ProcDied, TimeoutError) as error:
                errors.append(error)
            worst_s[0] = max(worst_s[0], time.monotonic() - began_s)
            if errors or (ended.is_set() and buffer.path().get(_PATIENCE_S) == "cma" and end is signal.SIGSTOP):
                break  # who copies by itself needs no owner that runs
        enough.set()

    user = threading.Thread(target=use)
    user.start()
    os.kill(pid, end)
    ended.set()
    assert enough.wait(_PATIENCE_S)
    user.join()
    if end is signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    kinds = {type(error) for error in errors}
    assert kinds == {ProcDied} if end is signal.SIGKILL else kinds <= {TimeoutError}
    assert worst_s[0] <= limit_s + 25.0 and (memory[:_GUARD] == 0xA5).all() and (memory[-_GUARD:] == 0xA5).all()
    if end is signal.SIGSTOP:
        buffer.read_into(here).get(_PATIENCE_S)
    else:
        wait_until("the failure", lambda: list(faults), timeout_s=_PATIENCE_S)


@pytest.mark.parametrize("hosts", ["cma"], indirect=True)
def test_a_death_has_its_cause_while_the_sockets_of_the_dead_are_still_open(
    parties: ActorMesh[Party], faults: list[MeshFailure]
) -> None:
    # As for a while after each death, since the kernel takes back the memory first.
    owner, user = parties.slice(gpus=0), parties.slice(gpus=1)
    buffer, pid = owner.make.call_one().get(_PATIENCE_S), owner.pid.call_one().get(_PATIENCE_S)
    assert user.read.call_one(buffer).get(_PATIENCE_S) == ""
    keeper, parent = owner.keep_open.call_one().get(_PATIENCE_S)
    halt(parent)  # who would report the death
    try:
        os.kill(pid, signal.SIGKILL)
        outcome = user.read.call_one(buffer)
        with pytest.raises(TimeoutError):
            outcome.get(1.0)
        os.kill(parent, signal.SIGCONT)
        assert re.match("ProcDied: .*SIGKILL", outcome.get(_PATIENCE_S))
    finally:
        os.kill(parent, signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):  # its proc's agent may have ended it
            os.kill(keeper, signal.SIGKILL)
    wait_until("the failure", lambda: list(faults), timeout_s=_PATIENCE_S)


@pytest.mark.parametrize("hosts", ["ucx"], indirect=True)
def test_thousands_of_registrations_leave_nothing(parties: ActorMesh[Party]) -> None:
    grown_bytes, num_fds, num_left = parties.slice(gpus=0).cycle.call_one(_CYCLES).get(30 * _PATIENCE_S)
    # A megabyte are the reasons why the last 4096 were revoked.
    assert (num_fds, num_left) == (0, 0) and grown_bytes < 2 * 2**20, grown_bytes
