"""Checks that Ctrl-C ends each wait for credit without losing any: the message is not sent, and later ones are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from monarch_hpc.actor.casts.route import CastRoute
from monarch_hpc.actor.casts.sender import CastSender
from monarch_hpc.actor.messages.causes import OnCause
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.line import LoopbackLink
from monarch_hpc.actor.messages.pending import Slot
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.ports import port
from monarch_hpc.core.errors import TransportError
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.transport.credit import PIECE_BYTES, Credit, take_credit
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.interrupts import ThreadSleeper
from monarch_hpc.transport.memory.own import OwnMemories
from monarch_hpc.wire.frames import Frame, Kind

_DEST = 7


class InterruptedEngine(Engine):
    """Opens no descriptors; each wait ends with Ctrl-C."""

    def __init__(self) -> None:
        self.clock = lambda: 0.0
        self.num_waits = 0

    @property
    def driving(self) -> bool:
        return False

    def undisturbed(self) -> ThreadSleeper:
        return ThreadSleeper()

    def wait(
        self, ready: Callable[[], bool], timeout_s: float | None, *, lends: bool = False, whole: bool = False
    ) -> bool:
        assert not ready()
        self.num_waits += 1
        raise KeyboardInterrupt

    def wake_waiters(self) -> None:
        """Nobody waits."""


@pytest.fixture
def engine() -> InterruptedEngine:
    return InterruptedEngine()


def check(engine: InterruptedEngine, send: Callable[[], object], give: Callable[[], object]) -> None:
    """Check *send*, which finds room for one message; *give* returns the credit of one."""
    send()
    with pytest.raises(KeyboardInterrupt):
        send()
    give()
    send()  # neither a ticket nor credit is left behind, so that it need not wait
    with pytest.raises(KeyboardInterrupt):
        send()
    assert engine.num_waits == 2


def test_a_call(engine: InterruptedEngine) -> None:
    credit = Credit(1, engine.wake_waiters)
    check(engine, lambda: take_credit(engine, credit, _DEST, 1), lambda: credit.give(_DEST, 1))


def test_a_call_whose_credit_came_just_before(engine: InterruptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    credit = Credit(1, engine.wake_waiters)

    def wait(_ready: Callable[[], bool], _timeout_s: float | None) -> bool:
        credit.give(_DEST, 1)  # grants the ticket
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "wait", wait)
    assert credit.try_take(_DEST, 1)
    with pytest.raises(KeyboardInterrupt):
        take_credit(engine, credit, _DEST, 1)
    assert credit.try_take(_DEST, 1)


def test_a_call_in_this_process(engine: InterruptedEngine) -> None:
    delivered: list[Frame] = []
    link = LoopbackLink(engine, lambda _link, frame: delivered.append(frame), PIECE_BYTES, OwnMemories(engine))
    check(engine, lambda: link.send(Frame(Kind.CALL, _DEST)), lambda: link.consumed(_DEST, PIECE_BYTES))
    assert len(delivered) == 2


class NoCauses:
    """No proc dies here."""

    def explain(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        raise NotImplementedError

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: OnCause) -> None:
        raise NotImplementedError

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        raise NotImplementedError


def test_a_cast(engine: InterruptedEngine) -> None:
    connections = Connections(engine, lambda _link, _frame: None)
    sender = CastSender(connections, Recorder(), NoCauses(), lambda: None)
    credit = Credit(1, engine.wake_waiters)
    route = cast(CastRoute, SimpleNamespace(credit=credit, broken=False))
    check(engine, lambda: sender._take_credit(route, _DEST, 1, None), lambda: credit.give(_DEST, 1))
    assert not sender.num_waiting


class BoundedRuntime:
    """Sends nothing; keeps the recipients of answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.slots: list[Slot] = []

    def call(self, _proc: ProcRef, _actor: int, _body: bytes, _buffers: object, slot: Slot) -> int:
        self.slots.append(slot)
        return len(self.slots)


def test_a_message_to_a_bounded_port(engine: InterruptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = BoundedRuntime(engine)
    monkeypatch.setattr(port, "current_runtime", lambda: runtime)
    bounded: port.Port[str] = port.Port(ProcRef(1, 0, "here", 0, 1, 1, ()), _DEST, capacity=1)
    check(engine, lambda: bounded.send("x"), lambda: runtime.slots[0].answer(Frame(Kind.RESULT)))
    assert len(runtime.slots) == 2
