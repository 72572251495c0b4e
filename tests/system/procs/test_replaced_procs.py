"""A proc replaced under a mesh: later spawns and calls find the new one, calls meant for the old one never do."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from dataclasses import replace

import pytest

from monarch_hpc import Actor, ActorDied, ActorMesh, HostMesh, ProcMesh, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.config.load import load
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.mesh.program.procs.orders import spawn_order
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.proc_key import ProcKey
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


class Worker(Actor):
    """Reports its process, and what it knows of a mesh."""

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def keep(self, procs: ProcMesh, workers: ActorMesh[Worker]) -> None:
        self.procs = procs
        self.workers = workers

    @endpoint
    def procs_after(self, _news: ProcMesh) -> list[ProcRef]:
        return self.procs.procs

    @endpoint
    def ask(self, rank: int) -> str:
        """Call a worker of the mesh that was kept."""
        try:
            return str(self.workers.slice(hosts=rank).pid.call_one().get(_PATIENCE_S))
        except ActorDied as error:
            return str(error)


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    with controlled(load({"procs.stop_s": 1.0}).config) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
            route = current_runtime().casts.route_to(procs.procs[0].allocation)
        assert route is not None and route.connect()  # its channel stays, and must not count as a leak of a test
        yield hosts


def test_a_replaced_proc_is_found_by_all_views_and_gets_nothing_of_the_old_one(
    hosts: HostMesh, faults: list[MeshFailure]
) -> None:
    last = hosts.slice(hosts=1)
    with hosts.spawn_procs(name="mesh") as mesh, last.spawn_procs(per_host={"gpus": 2}, name="spare") as spare:
        # The stand-in has the rank of the proc that it replaces, which it finds its place by.
        second, (old, spared) = mesh.slice(hosts=1), (mesh.procs[1], spare.procs[1])
        workers = mesh.spawn("worker", Worker)
        first_pid, old_pid = workers.pid.call().get(_PATIENCE_S).values()
        workers.slice(hosts=0).keep.call_one(mesh, workers).get(_PATIENCE_S)
        stale = pickle.dumps(mesh)

        # What a restart will do, once the new proc is ready.
        new = replace(spared, mesh=old.mesh, rank=old.rank, restarts=1)
        current_runtime().incarnations.of(old.mesh, {old.rank: new})
        for view in (mesh.procs[1:], second.procs, pickle.loads(stale).procs[1:]):
            assert view == [new]
        assert workers.slice(hosts=0).procs_after.call_one(mesh).get(_PATIENCE_S)[1] == new

        later = mesh.spawn("later", Worker)
        assert list(later.pid.call().get(_PATIENCE_S).values()) == [first_pid, spared.pid]
        assert second.spawn("last", Worker).pid.call_one().get(_PATIENCE_S) == spared.pid
        assert list(workers.pid.call().get(_PATIENCE_S).values()) == [first_pid, old_pid]

        os.kill(old_pid, signal.SIGKILL)
        with pytest.raises(ActorDied, match="worker\\[1\\] on local1, endpoint pid died: signal 9"):
            workers.slice(hosts=1).pid.call_one().get(_PATIENCE_S)
        assert "died: signal 9" in workers.slice(hosts=0).ask.call_one(1).get(_PATIENCE_S)
        assert list(later.pid.call().get(_PATIENCE_S).values()) == [first_pid, spared.pid]


def test_a_proc_that_replaces_one_of_another_host_gets_no_casts_meant_for_that(
    hosts: HostMesh, monkeypatch: pytest.MonkeyPatch, faults: list[MeshFailure]
) -> None:
    monkeypatch.setattr(current_runtime().casts, "max_direct", 1)
    controller = Controller.instance()
    (tenancy,) = controller.tenancies.all()
    with hosts.spawn_procs(per_host={"gpus": 2}, name="mesh") as mesh:
        workers = mesh.spawn("worker", Worker)
        pids = list(workers.pid.call().get(_PATIENCE_S).values())
        old = mesh.procs[3]
        os.kill(old.pid, signal.SIGKILL)
        with pytest.raises(ActorDied):
            workers.slice(hosts=1, gpus=1).pid.call_one().get(_PATIENCE_S)

        # What a restart will send; the program's own table is as it was.
        plan, config = tenancy.fleet._meshes[old.mesh].plan, tenancy.fleet._config
        order = spawn_order(tenancy.run, old.mesh, plan, config)
        elsewhere = replace(order, hosts=[0], first_rank=[2], ranks=[3], restarts=1)
        controller.engine.call_soon(lambda: tenancy.send(elsewhere))
        key = ProcKey(tenancy.run, old.mesh, 3, 0)
        wait_until("the new proc", lambda: key in tenancy.procs)
        new = tenancy.procs[key]
        assert (new.rank, new.host_rank, new.restarts) == (3, 0, 1)
        answers = workers.pid.options(on_error="collect").call().get(_PATIENCE_S)
        *lived, died = answers.values()
        assert lived == pids[:3]
        assert isinstance(died, ActorDied) and "signal 9" in str(died)
    del faults[:]
