"""Memory that is lent, and transfers, as `status --memory` and `status --calls` show them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from monarch_hpc import Actor, HostMesh, endpoint
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.rdma import RDMABuffer, RDMAState
from monarch_hpc.telemetry.views.scene import read_scene
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.memory import MEMORY, MemoryUse
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Lender(Actor):
    """Lends memory, reads that of others, and can keep the engine of its process busy."""

    @endpoint
    def lend(self, num_bytes: int) -> RDMABuffer:
        self._data = np.zeros(num_bytes, np.uint8)
        return RDMABuffer(self._data)

    @endpoint
    def lend_tree(self, num: int) -> RDMAState:
        self._tree = [np.zeros(1000) for _ in range(num)]
        return RDMAState(self._tree)

    @endpoint
    async def read(self, buffer: RDMABuffer, times: int) -> None:
        for _ in range(times):
            await buffer.read()

    @endpoint
    async def write(self, buffer: RDMABuffer, num_bytes: int) -> None:
        await buffer.write_from(np.zeros(num_bytes, np.uint8))


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": 0.5, "fabric.order": ["cma", "tcp"]}).config) as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


def uses() -> dict[tuple[int, int], MemoryUse]:
    """What each process has, by mesh and rank."""
    found = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), MEMORY, _PATIENCE_S)
    assert found is not None and not found.missing
    return {(row.mesh, row.rank): row.use for row in found.rows}


def test_what_is_lent_and_moved_is_shown_by_actor_and_path(hosts: HostMesh) -> None:
    procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2})
    settle(procs)
    lenders = procs.spawn("lender", Lender)
    owner, reader = lenders.slice(gpus=0), lenders.slice(gpus=1)
    buffer, other = (owner.lend.call_one(num_bytes).get(_PATIENCE_S) for num_bytes in (3_000_000, 1))
    state = owner.lend_tree.call_one(50).get(_PATIENCE_S)
    reader.read.call_one(buffer, 3).get(_PATIENCE_S)
    reader.write.call_one(buffer, 1000).get(_PATIENCE_S)
    mine = RDMABuffer(np.zeros(10))
    (mesh,) = {mesh for mesh, rank in uses() if rank == 1}
    lent = uses()[mesh, 0].lent
    assert [(one.name, one.rank) for one in lent] == [("lender", 0)]
    # Two buffers, and of the tree its arrays and the root that says where they are.
    assert lent[0].num == 4 and 3_400_001 < lent[0].num_bytes < 3_500_000
    assert [(one.name, one.num, one.num_bytes) for one in uses()[-1, 0].lent] == [("", 1, 80)]
    moved = {one.write: one for one in uses()[mesh, 1].moved}
    assert {(one.path, one.num, one.num_bytes) for one in moved.values()} == {("cma", 3, 3_000_000), ("cma", 1, 1000)}
    assert all(0 < one.took_s < _PATIENCE_S and one.host for one in moved.values())
    command = [sys.executable, "-m", "monarch_hpc.cli", "status", os.environ[DIRECTORY_VARIABLE], "--memory"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True).stdout
    assert "lent by lender[0]" in shown and "by cma" in shown and "2.9 MiB" in shown, shown
    document = json.loads(subprocess.run([*command, "--json"], capture_output=True, timeout=_PATIENCE_S).stdout)
    assert document["allocations"][0]["rows"]
    for one in (buffer, other, state, mine):
        one.drop().get(_PATIENCE_S)
    wait_until("nothing is lent any more", lambda: not any(use.lent for use in uses().values()), _PATIENCE_S)
    procs.stop().get(_PATIENCE_S)


def test_who_waits_for_memory_is_shown_among_the_calls(hosts: HostMesh) -> None:
    procs = hosts.slice(hosts=1).spawn_procs({"gpus": 1})
    buffer = procs.spawn("lender", Lender).lend.call_one(1000).get(_PATIENCE_S)
    runtime = current_runtime()
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go.wait(2 * _PATIENCE_S)

    def waits() -> list[str]:
        memory = runtime.recorder.memory
        return [wait.what for wait in read_scene(lambda at, size: memory[at : at + size]).waits]

    waiting = threading.Thread(target=lambda: buffer.read().get(_PATIENCE_S))
    runtime.engine.call_soon(hold)  # so that nothing asks the owner for its key
    assert held.wait(_PATIENCE_S)
    try:
        waiting.start()
        wait_until("the wait", lambda: any(what.startswith("memory of rank 0 on ") for what in waits()), _PATIENCE_S)
    finally:
        go.set()
        waiting.join(_PATIENCE_S)
    assert not waits()
    procs.stop().get(_PATIENCE_S)
