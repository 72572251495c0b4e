"""A program's requests about kept meshes, and the answers of this head and the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.errors import AllocationError, PeerLost
from monarch_hpc.mesh.program.kept.requests import KeptRequests, KeptWork
from monarch_hpc.mesh.program.takeover.roll import ref_of
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.kept import KeepMesh, KeptOpened, KeptStopped, MeshKept, OpenKept, StopKept
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady
from monarch_hpc.wire.control.refusal import refuse
from monarch_hpc.wire.proc_key import ProcKey


class World:
    """The requests of run ``2``, and what they do."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.released: list[int] = []
        self.procs: dict[ProcKey, ProcRef] = {}
        self.lost: list[ProcEnded] = []
        self.error: PeerLost | None = None
        engine = SimpleNamespace(call_soon=lambda callback: callback(), wake_waiters=lambda: None, driving=True)
        self.requests = KeptRequests(
            cast(Engine, engine),
            "dev",
            "2",
            5.0,
            KeptWork(
                self._send,
                self.released.append,
                lambda told: ref_of(told, f"n{told.proc.host}", "a"),
                self.procs.__setitem__,
                self.lost.append,
                lambda run, mesh: [key for key in self.procs if (key.run, key.mesh) == (run, mesh)],
            ),
        )

    def _send(self, message: Message) -> None:
        if self.error is not None:
            raise self.error
        self.sent.append(message)

    def take(self, *messages: Message) -> list[bool]:
        return [self.requests.take(message) for message in messages]


@pytest.fixture
def world() -> World:
    return World()


def ready(rank: int, run: str = "1") -> ProcReady:
    return ProcReady(ProcKey(run, 9, rank, rank), 70 + rank, str(12 + rank), ["tcp://10.1.0.1:9"])


def ended(rank: int, run: str = "1") -> ProcEnded:
    return ProcEnded(ProcKey(run, 9, rank, rank), False, "killed", ["a line"], "signal")


def opened(number: int = 1, run: str = "1") -> KeptOpened:
    return KeptOpened(run, 9, "weights", 3, number)


def test_an_opened_mesh_has_its_living_procs_and_why_others_have_ended(world: World) -> None:
    future = world.requests.open("weights")
    assert world.sent == [OpenKept("2", "weights", 1)]
    # The ends are for the tenancy, too: it knows none of these procs.
    assert world.take(ready(0), ready(1), ended(1), opened()) == [True, True, False, True]
    report = future.result()
    assert (report.run, report.mesh, report.num_ranks) == ("1", 9, 3)
    assert {rank: proc.pid for rank, proc in report.alive.items()} == {0: 70}
    assert {rank: (death.cause, death.last_lines) for rank, death in report.ended.items()} == {
        1: ("killed", ("a line",))
    }
    assert list(world.procs) == [ready(0).proc]


def test_reports_of_the_programs_own_run_are_not_taken_until_it_keeps_a_mesh(world: World) -> None:
    assert world.take(ready(0, "2"), ended(0, "2")) == [False, False]
    future = world.requests.keep(9, "weights", 3)
    assert world.sent == [KeepMesh("2", 9, "weights", 3, 1)]
    assert world.take(MeshKept("2", 9, 1)) == [True]
    assert (future.result(), world.released) == (None, [9])
    assert world.take(ready(0, "2")) == [True]


def test_refusals_and_a_lost_head_end_requests(world: World) -> None:
    kept, used, stopped = world.requests.keep(9, "a", 1), world.requests.open("b"), world.requests.stop("c")
    assert world.sent[2] == StopKept("c", 5.0, 3)
    world.take(*(refuse(request, "no") for request in world.sent[:2]))
    for future in (kept, used):
        with pytest.raises(AllocationError, match="no"):
            future.result()
    world.requests.fail("the allocation is gone")
    with pytest.raises(AllocationError, match="is gone"):
        stopped.result()
    world.error = PeerLost("n0", "closed")
    with pytest.raises(AllocationError, match="cannot be reached"):
        world.requests.open("d").result()
    done = World()
    future = done.requests.stop("c")
    assert done.take(KeptStopped("c", 1), KeptStopped("c", 1)) == [True, True]
    assert future.result() is None


def test_the_next_head_is_asked_again_and_what_it_does_not_know_is_lost(world: World) -> None:
    world.requests.open("weights")
    world.take(ready(0), ready(1), opened())
    pending = world.requests.open("others")
    again = world.requests.again()
    assert again == [OpenKept("2", "others", 2), OpenKept("2", "weights", 3, again=True)]
    world.take(ready(0), opened(3))
    assert [(one.proc, one.cause) for one in world.lost] == [
        (ready(1).proc, "it ended while the allocation had no head")
    ]
    assert not pending.done()
    _, last = world.requests.again()
    world.take(refuse(last, "no kept mesh has the name"))
    assert {one.proc for one in world.lost} == {ready(0).proc, ready(1).proc}
    assert world.requests.again() == [OpenKept("2", "others", 2)]
