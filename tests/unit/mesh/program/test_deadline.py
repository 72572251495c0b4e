"""Hooks of a program at a deadline: their order, their failures, and what the head hears of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import cast

import pytest

from monarch_hpc.allocation.ready import Ready
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.mesh.program.deadline import ProgramDeadline
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.deadline import AwaitDeadline, DeadlineMet, DeadlineNear, JobEnd
from monarch_hpc.wire.control.message import Message


class Used:
    """An allocation that the program uses, as far as its deadline is concerned."""

    def __init__(self, allocation: str) -> None:
        self.allocation = allocation
        self.sent: list[Message] = []
        self.ready = cast("Ready", None)

    def send(self, message: Message) -> None:
        self.sent.append(message)


class Program:
    """A program with two allocations."""

    def __init__(self, engine: Engine) -> None:
        self.used = [Used("a"), Used("b")]
        self.deadline = ProgramDeadline(engine, lambda: [cast("Tenancy", one) for one in self.used])

    def hear(self, index: int, message: JobEnd | DeadlineNear) -> None:
        self.deadline.on_message(cast("Tenancy", self.used[index]), message)

    def until_met(self, index: int) -> None:
        wait_until("the answer", lambda: DeadlineMet() in self.used[index].sent)


@pytest.fixture
def program() -> Iterator[Program]:
    engine = Engine()
    engine.start()
    yield Program(engine)
    engine.close()


def test_the_heads_are_asked_for_notice_once(program: Program) -> None:
    for _ in range(2):
        program.deadline.add(lambda _left_s, _cause: None)
    assert [one.sent for one in program.used] == [[AwaitDeadline()]] * 2


def test_hooks_run_in_order_on_another_thread_and_one_that_fails_stops_none(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[tuple[str, bool, str]] = []

    def note(name: str, left_s: float, cause: str) -> None:
        calls.append((name, threading.current_thread() is threading.main_thread(), cause))
        assert 90 < left_s <= 100
        if name == "first":
            raise ValueError("no space left")

    for name in ("first", "second"):
        program.deadline.add(partial(note, name))
    program.hear(1, DeadlineNear(100.0, "SIGTERM"))
    program.until_met(1)
    assert calls == [("first", False, "SIGTERM"), ("second", False, "SIGTERM")]
    assert "no space left" in caplog.text and program.used[0].sent == [AwaitDeadline()]


def test_a_hook_that_is_added_late_runs_at_once(program: Program) -> None:
    program.deadline.add(lambda _left_s, _cause: None)
    program.hear(0, DeadlineNear(100.0, "SIGTERM"))
    program.until_met(0)
    late: list[str] = []
    program.deadline.add(lambda _left_s, cause: late.append(cause))
    wait_until("the late hook", lambda: late, accept=lambda causes: causes == ["SIGTERM"])


def test_the_first_end_counts(program: Program) -> None:
    program.hear(0, JobEnd(-1.0))
    program.hear(1, JobEnd(-1.0))
    assert program.deadline.seconds_left() is None
    program.hear(1, JobEnd(500.0))
    left_s = program.deadline.seconds_left()
    assert left_s is not None and 400 < left_s <= 500
    program.hear(0, JobEnd(50.0))
    left_s = program.deadline.seconds_left()
    assert left_s is not None and left_s <= 50
