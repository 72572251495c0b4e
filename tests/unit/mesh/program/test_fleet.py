from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from monarch_hpc.actor.messages.incarnations import Incarnations
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.config.schema import ProcsConfig
from monarch_hpc.core.errors import PeerLost, SpawnError
from monarch_hpc.core.ids import mesh_number
from monarch_hpc.mesh.healing.revivals import Healing, Revivals, Work
from monarch_hpc.mesh.plan import MeshOwner, Outcome, ProcPlan, Started
from monarch_hpc.mesh.program.procs import orders
from monarch_hpc.mesh.program.procs.fleet import Fleet
from monarch_hpc.testing import ManualClock
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.procs import SpawnProcs, StopProcs

CONFIG = ProcsConfig(
    start_s=60.0,
    gpu_visible="own",
    gpu_order=(),
    gpu_variable="auto",
    bind="auto",
    mpi="pmix",
    preload=("torch",),
    stop_s=5.0,
    cause_s=10.0,
    actor_threads=32,
    heal_s=300.0,
    kept_bytes=0,
    poison_lives=3,
)
PLAN = ProcPlan(hosts=(0, 2), per_host=2, name="staff", environment={"A": "1"}, preload=("numpy", "torch"), mpi=True)
OWNER = MeshOwner(proc=77, actor=5)


class World:
    """A fleet on three hosts that records the messages it sends."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.clock = ManualClock()
        self.outcomes: list[Outcome] = []
        self.late: list[list[str]] = []
        self.error: PeerLost | None = None
        self.num_started = 0
        engine = SimpleNamespace(call_soon=lambda callback: callback(), call_later=self.clock.call_later)
        self.published: list[ProcRef] = []
        work = Work(
            clock=self.clock,
            later=self.clock.call_later,
            start=lambda proc, restarts: self.fleet.order_again(proc, restarts),
            prepare=lambda _proc, done: done(""),
            publish=self.publish,
            end=lambda _proc: None,
            failed=lambda _proc, _cause, _told: None,
            reachable=lambda _proc: True,
        )
        self.revivals = Revivals(work, CONFIG.start_s, 5.0)
        numbers = itertools.count(1)
        self.fleet = Fleet(cast(Engine, engine), "run", CONFIG, Incarnations(), self.tell, numbers, self.revivals)
        self.fleet.member = 3
        self.fleet.hosts = {
            rank: HostEntry(rank, f"n{rank}", [], 1, "3.11", "0.1", [0], [], 1, {}) for rank in range(3)
        }

    def publish(self, proc: ProcRef, done: Callable[[], None]) -> None:
        self.published.append(proc)
        done()

    def tell(self, message: Message) -> None:
        if self.error is not None:
            raise self.error
        encode(message)
        self.sent.append(message)

    def start(self, plan: ProcPlan = PLAN, owner: MeshOwner | None = OWNER) -> int:
        self.fleet.start(plan, owner, self.outcomes.append)
        self.num_started += 1
        return mesh_number(self.fleet.member, self.num_started)

    def ref(self, mesh: int, rank: int) -> ProcRef:
        return ProcRef(mesh, rank, f"n{rank}", PLAN.hosts[rank // 2], 100 + rank, 1000 + rank, ())

    def reach(self, mesh: int, ranks: Sequence[int] = range(4)) -> None:
        for rank in ranks:
            assert self.fleet.on_ready(self.ref(mesh, rank))
            self.fleet.on_reached(self.ref(mesh, rank))

    def orders(self) -> list[Message]:
        sent, self.sent = self.sent, []
        return sent


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv("PYTHONPATH", raising=False)  # procs get the program's
    return World()


def test_an_order_says_all_and_is_answered_when_all_procs_are_reached(world: World) -> None:
    mesh = world.start()
    (order,) = world.orders()
    assert isinstance(order, SpawnProcs)
    assert (order.mesh, order.hosts, order.first_rank, order.num_ranks) == (mesh_number(3, 1), [0, 2], [0, 2], 4)
    assert (order.preload, order.bind, order.mpi, order.environment) == (["torch", "numpy"], "auto", "pmix", {"A": "1"})
    world.reach(mesh, range(3))
    assert world.outcomes == [] and world.fleet.owner_of(mesh) is None
    world.reach(mesh, [3])
    assert world.outcomes == [Started(mesh, {rank: world.ref(mesh, rank) for rank in range(4)})]
    assert world.fleet.owner_of(mesh) == OWNER
    assert world.orders() == []
    world.clock.advance(3600.0)
    assert world.orders() == [] and len(world.outcomes) == 1


def test_one_that_does_not_start_ends_the_others_before_it_is_told(world: World) -> None:
    mesh = world.start()
    world.orders()
    failure = SpawnError("n2", "exit code 1")
    world.fleet.on_failed(mesh, failure)
    world.fleet.on_failed(mesh, SpawnError("n0", "another"))
    assert world.orders() == [StopProcs("run", mesh, [0, 2], 5.0)] and world.outcomes == []
    world.fleet.on_stopped(mesh, 0)
    assert world.outcomes == []
    world.fleet.on_stopped(mesh, 2)
    assert world.outcomes == [failure]


def test_hosts_that_say_nothing_are_named(world: World) -> None:
    mesh = world.start()
    world.reach(mesh)
    for _ in range(2):
        world.fleet.stop(mesh, "enough", world.late.append)
    assert [type(message) for message in world.orders()] == [SpawnProcs, StopProcs]
    assert world.fleet.reason(mesh) == "enough" and world.fleet.owner_of(mesh) is None
    world.fleet.on_stopped(mesh, 2)
    world.clock.advance(9.9)
    assert world.late == []
    world.clock.advance(0.2)
    assert world.late == [["n0"], ["n0"]]
    world.fleet.stop(mesh, "again", world.late.append)
    assert world.late[-1] == [] and world.orders() == []


def test_procs_that_were_asked_to_end_are_known_until_their_host_reports_that_none_is_left(world: World) -> None:
    mesh, other = world.start(), world.start()
    world.reach(mesh)
    world.fleet.on_ready(replace(world.ref(other, 0), incarnation=2000))

    def ending() -> list[int]:
        return [number for number in (1000, 1001, 1002, 1003, 2000, 3000) if world.fleet.is_ending(number)]

    assert ending() == []
    world.fleet.stop_on([2], 0, "enough of one host", world.late.append)
    assert ending() == [1002, 1003, 2000]  # one that starts is stopped on all hosts
    world.fleet.stop(mesh, "enough", world.late.append)
    assert ending() == [1000, 1001, 1002, 1003, 2000]
    world.fleet.on_stopped(mesh, 2)
    assert ending() == [1000, 1001, 2000]
    world.clock.advance(3600.0)
    assert ending() == []


def test_procs_that_do_not_report_are_named(world: World) -> None:
    mesh = world.start()
    world.reach(mesh, [0, 1, 2])
    world.clock.advance(64.9)
    assert world.orders()[1:] == []
    world.clock.advance(0.2)
    world.fleet.on_stopped(mesh, 0)
    world.fleet.on_stopped(mesh, 2)
    (failure,) = world.outcomes
    assert str(failure) == "no proc on n2: its agent did not report within 65 s"


def test_what_is_stopped_while_it_starts_says_so(world: World) -> None:
    mesh = world.start()
    world.fleet.stop(mesh, "its owner ended", world.late.append)
    world.fleet.on_stopped(mesh, 0)
    world.fleet.on_stopped(mesh, 2)
    assert str(world.outcomes[0]).endswith("it was stopped while it started: its owner ended")
    assert world.late == [[]]


def test_procs_end_with_the_proc_of_their_owner_and_none_start_after_that(world: World) -> None:
    theirs, mine = world.start(), world.start(owner=None)
    world.reach(mine)
    world.orders()
    world.fleet.on_death(OWNER.proc)
    assert world.orders() == [StopProcs("run", theirs, [0, 2], 5.0)]
    world.start()
    assert world.orders() == []
    assert str(world.outcomes[-1]) == "no proc on its hosts: the proc of its owner has ended"


def test_a_lost_host_ends_what_starts_there_and_waits_for_nothing_there(world: World) -> None:
    starting, running = world.start(), world.start()
    world.reach(running)
    world.fleet.on_host_lost(2, "no heartbeat")
    world.fleet.on_stopped(starting, 0)
    assert str(world.outcomes[-1]) == "no proc on n2: the host is lost: no heartbeat"
    assert world.fleet.owner_of(running) == OWNER
    world.fleet.stop(running, "", world.late.append)
    world.fleet.on_host_lost(2, "no heartbeat")
    world.fleet.on_stopped(running, 0)
    assert world.late == [[]]


def test_without_the_head_all_is_over(world: World) -> None:
    starting, running = world.start(), world.start()
    world.reach(running)
    world.fleet.stop(running, "", world.late.append)
    world.fleet.on_head_lost("the allocation is gone")
    assert world.late == [[]] and str(world.outcomes[-1]) == "no proc on the allocation: the allocation is gone"
    assert starting and world.start()
    assert str(world.outcomes[-1]) == "no proc on the allocation: the allocation is gone"


def test_a_head_that_cannot_be_told_is_an_error_and_keeps_nobody_waiting(world: World) -> None:
    world.error = PeerLost("head", "it is gone")
    world.start()
    assert "the request could not be sent" in str(world.outcomes[-1]) and "it is gone" in str(world.outcomes[-1])


def test_a_plan_that_cannot_be_sent_is_an_error_at_once(world: World) -> None:
    mesh = world.start(replace(PLAN, environment={"A": cast(str, Path("/x"))}))
    (stop,) = world.orders()
    assert isinstance(stop, StopProcs)
    for host in PLAN.hosts:
        world.fleet.on_stopped(mesh, host)
    (outcome,) = world.outcomes
    assert "the request could not be sent: TypeError: Object of type PosixPath" in str(outcome)


def test_a_refused_order_fails_at_once_and_a_refused_stop_names_the_hosts(world: World) -> None:
    mesh = world.start()
    world.fleet.on_failed(mesh, SpawnError("any host", "umask 7000 is out of range"))
    assert not world.outcomes  # not before all procs have ended
    world.fleet.on_not_stopped(mesh)
    assert [str(outcome) for outcome in world.outcomes] == ["no proc on any host: umask 7000 is out of range"]
    running = world.start()
    world.reach(running)
    world.fleet.stop(running, "", world.late.append)
    world.fleet.on_not_stopped(running)
    assert world.late == [[f"n{host}" for host in sorted(PLAN.hosts)]]


def test_a_program_without_proc_starts_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "/proc/self/status")

    monkeypatch.setattr(orders, "own_umask", refuse)
    mesh = world.start()
    for host in PLAN.hosts:
        world.fleet.on_stopped(mesh, host)
    assert "the request could not be sent" in str(world.outcomes[-1])


def test_all_are_stopped_at_once(world: World) -> None:
    world.fleet.stop_all("", world.late.append)
    assert world.late == [[]]
    meshes = [world.start(), world.start()]
    for mesh in meshes:
        world.reach(mesh)
    world.fleet.stop_all("over", world.late.append)
    for mesh in meshes:
        world.fleet.on_stopped(mesh, 0)
    assert len(world.late) == 1
    world.fleet.on_stopped(meshes[0], 2)
    world.clock.advance(10.0)
    assert world.late[1:] == [["n2"]]


def test_a_dead_proc_is_ordered_again_alone_in_its_place(world: World) -> None:
    mesh = world.start(replace(PLAN, mpi=False))
    world.reach(mesh)
    (order,) = world.orders()
    assert isinstance(order, SpawnProcs)
    healed: list[Healing] = []
    world.revivals.on_death(world.ref(mesh, 3), "signal 9")
    world.revivals.heal(mesh, [world.ref(mesh, 3)], healed.append, 60.0, respawn=True)
    (again,) = world.orders()
    assert isinstance(again, SpawnProcs)
    assert again == replace(order, hosts=[2], first_rank=[2], ranks=[3], restarts=1)
    assert (again.ranks_on(2), order.ranks_on(2)) == ([3], [2, 3])
    new = replace(world.ref(mesh, 3), incarnation=2003, restarts=1)
    assert not world.fleet.on_ready(replace(new, rank=2)) and world.fleet.on_ready(new)
    world.fleet.on_reached(new)
    assert (world.published, healed) == ([new], [Healing({3: "signal 9"}, {})])


def test_tasks_of_a_step_are_not_ordered_again(world: World) -> None:
    mesh = world.start()
    world.reach(mesh)
    world.orders()
    healed: list[Healing] = []
    world.revivals.on_death(world.ref(mesh, 3), "signal 9")
    world.revivals.heal(mesh, [world.ref(mesh, 3)], healed.append, 60.0, respawn=True)
    assert world.orders() == []
    assert "the tasks of one step" in healed[0].dead[3][2]


def test_a_mesh_that_stops_heals_no_more(world: World) -> None:
    mesh = world.start()
    world.reach(mesh)
    world.orders()
    healed: list[Healing] = []
    world.revivals.on_death(world.ref(mesh, 3), "signal 9")
    world.fleet.stop(mesh, "enough", world.late.append)
    world.revivals.heal(mesh, [world.ref(mesh, 3)], healed.append, 60.0, respawn=True)
    assert healed == [Healing({}, {})]
    assert [type(order) for order in world.orders()] == [StopProcs]
