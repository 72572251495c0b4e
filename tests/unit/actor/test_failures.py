"""Checks who is notified of a failure, and that nothing outlives its owner."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.causes import OnCause
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.pending import Answer
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.messages.sent_failures import pack_fault
from monarch_hpc.actor.runtime.failures import FailureRouter
from monarch_hpc.actor.runtime.ownership import Ownership
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ActorDied, PeerLost, TransportError
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.frames import Frame, Kind

_ACTOR, _OWNER = 5, 6
KILLED = Death(DeathKind.SIGNAL, "killed by SIGKILL")
_PROCS = {rank: ProcRef(1, rank, "gpu01", 0, 100 + rank, 10 + rank, ()) for rank in range(2)}


class NoEngine(Engine):
    """Opens no descriptors."""

    def __init__(self) -> None:
        pass


class StoppedProcs:
    """Procs with these incarnations were asked to end."""

    def __init__(self) -> None:
        self.stopped: set[int] = set()

    def explain(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        raise NotImplementedError

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: OnCause) -> None:
        raise NotImplementedError

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        return incarnation in self.stopped


class Process:
    """A process without actors, which has spawned some elsewhere."""

    def __init__(self, owner: int = 0) -> None:
        recorder = Recorder()
        self.ownership = Ownership(recorder)
        self.causes = StoppedProcs()
        self.stopped: list[tuple[int, int]] = []
        self.answers: list[Answer] = []
        self.unhandled: list[MeshFailure] = []
        engine = NoEngine()
        self.failures = FailureRouter(
            self.ownership,
            Connections(engine, lambda _link, _frame: None),
            self.causes,
            Replier(engine, "login", recorder.names),
            {},
            self._stop,
            self.unhandled.append,
        )
        self.ownership.add(_ACTOR, owner, "worker", _PROCS)

    def _stop(self, proc: ProcRef, actor: int, answer: Answer) -> None:
        self.stopped.append((proc.rank, actor))
        if not proc.rank:
            raise PeerLost(proc.host, "it is gone")
        self.answers.append(answer)

    def lose(self, rank: int, *, reported: bool) -> None:
        incarnation = _PROCS[rank].incarnation
        for owned, lost in self.ownership.lose(incarnation):
            self.failures.on_death(owned, lost, incarnation, reported, ActorDied(owned.where(lost), KILLED))


def test_a_death_that_no_call_reports_is_unhandled_once() -> None:
    process = Process()
    process.lose(1, reported=False)
    process.lose(1, reported=False)
    where = "actor worker[1] on gpu01"
    assert process.unhandled == [MeshFailure("worker", 1, where, "killed by SIGKILL", kind=DeathKind.SIGNAL)]
    body, buffers = pack_fault(_ACTOR, MeshFailure("worker", 1, where, "its endpoint raised"))
    process.failures.on_fault(Frame(Kind.FAILURE, 0, 0, body, buffers))
    assert len(process.unhandled) == 1


@pytest.mark.parametrize(("reported", "stopped"), [(True, False), (False, True)])
def test_a_death_that_a_call_reports_or_that_was_asked_for_is_not(*, reported: bool, stopped: bool) -> None:
    process = Process()
    process.causes.stopped = {_PROCS[0].incarnation} if stopped else set()
    process.lose(0, reported=reported)
    assert not process.unhandled


def test_an_owner_that_has_ended_is_not_replaced_by_the_program() -> None:
    process = Process(_OWNER)
    process.lose(0, reported=False)
    assert not process.unhandled


def test_nothing_outlives_its_owner() -> None:
    process = Process(_OWNER)
    ended: list[Callable[[], None]] = []
    process.failures.adopt(_OWNER, "procs", 1, _PROCS, ended.append)  # the owner is gone already
    assert len(ended) == 1
    assert process.stopped == [(0, _ACTOR), (1, _ACTOR)]  # the first is lost, which spares no other
    assert [owned.actor for owned in process.ownership.of(_OWNER)] == [_ACTOR]


def test_an_end_is_complete_when_the_last_of_what_was_owned_is_gone() -> None:
    process = Process(_OWNER)
    process.ownership.add(7, _OWNER, "other", _PROCS)
    ended: list[Callable[[], None]] = []
    process.ownership.add(1, _OWNER, "procs", _PROCS, ended.append)
    gone: list[bool] = []
    process.failures.stop_owned(_OWNER, lambda: gone.append(True))
    assert len(process.answers) == 2 and len(ended) == 1
    answer = Frame(Kind.RESULT)
    process.answers[0](answer)
    ended[0]()
    assert not gone
    process.answers[1](answer)
    assert gone == [True]


def test_the_end_of_what_owned_nothing_is_complete_at_once() -> None:
    gone: list[bool] = []
    Process().failures.stop_owned(_OWNER, lambda: gone.append(True))
    assert gone == [True]
