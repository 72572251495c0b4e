"""Gathering: a call ends with its last answer, soon after its first failure, or at its time limit."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pytest

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.messages.sent_failures import pack_failure
from monarch_hpc.actor.runtime.deadlines import Deadlines
from monarch_hpc.actor.runtime.runtime import HELD, Runtime
from monarch_hpc.core.errors import ActorDied, ActorError, CallTimeout, MeshDied, MeshError, MonarchError
from monarch_hpc.mesh.calls.answer import CallOptions
from monarch_hpc.mesh.calls.callee import Answers, Callee
from monarch_hpc.mesh.calls.gather import Gather
from monarch_hpc.testing import ManualClock
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import dumps

NUM = 4
FIRST = 10  # number of the first call


class Asked:
    """Four actors that record the call and answer when the test says so, and the runtime that sends it."""

    def __init__(self) -> None:
        self.clock = ManualClock(100.0)
        self.cancelled: list[int] = []
        self.held: list[int] = []
        self.error: Exception | None = None
        # Of the callee.
        self.name, self.actor, self.load, self.ranks = "staff", 5, None, tuple(range(NUM))

    @property
    def runtime(self) -> Runtime:
        return cast(
            Runtime,
            SimpleNamespace(
                engine=SimpleNamespace(clock=self.clock, call_later=self.clock.call_later),
                deadlines=Deadlines(self.clock, self.clock.call_later),
                casts=SimpleNamespace(cancel=lambda _cast: None),
                cancel=lambda _actor, numbers: self.cancelled.extend(numbers),
            ),
        )

    def where(self, method: str, place: int) -> str:
        return f"actor staff[{place}] on n{place}, endpoint {method}"

    def where_all(self, method: str, places: Sequence[int]) -> str:
        return self.where(method, places[0]) + f" and {len(places) - 1} more" * (len(places) > 1)

    def send(self, _method: str, _head: bytes, _args: object, _kwargs: object, answers: Answers | None) -> None:
        assert answers is not None
        if self.error is not None:
            raise self.error
        for place in range(NUM):
            asked = answers.ask(place, place, ProcRef(1, place, f"n{place}", place, 100, 1000 + place, ()))
            asked.number = HELD if place in self.held else FIRST + place

    def send_by(
        self, method: str, head: bytes, args: object, kwargs: object, answers: Answers | None, end_s: float
    ) -> list[int]:
        assert end_s > self.clock()
        self.send(method, head, args, kwargs, answers)
        return self.held


class Call:
    """One gathered call, and how often it has ended."""

    def __init__(self, asked: Asked, timeout_s: float | None = None, *, collects: bool = False) -> None:
        self.num_ended = 0
        self.gather = Gather(asked.runtime, cast(Callee, asked), "work", CallOptions(timeout_s, collects))
        self.gather.completed = self._end
        self.gather.send(b"", (), {})

    def _end(self) -> None:
        self.num_ended += 1

    def answer(self, *places: int) -> None:
        for place in places:
            body, buffers = dumps(f"value {place}")
            self.take(place, Frame(Kind.RESULT, 0, 0, body, buffers))

    def fail(self, place: int) -> None:
        body, buffers = pack_failure(f"rank {place}", ValueError(f"bad {place}"))
        self.take(place, Frame(Kind.FAILURE, 0, 0, body, buffers))

    def die(self, place: int) -> None:
        self.take(place, ActorDied(f"rank {place}", "exit code 1"))

    def take(self, place: int, given: Frame | MonarchError) -> None:
        self.gather.take(place, place, given)


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_call_ends_with_its_last_answer(asked: Asked) -> None:
    call = Call(asked)
    call.answer(3, 1, 0)
    assert (call.num_ended, call.gather.missing()) == (0, "actor staff[2] on n2, endpoint work")
    call.answer(2)
    assert (call.num_ended, call.gather.fails) == (1, False)
    assert call.gather.collect() == ([f"value {place}" for place in range(NUM)], {})
    assert call.gather.missing() == "staff.work"
    assert (asked.clock.timers, asked.cancelled) == ([], [])


def test_a_failure_ends_the_call_soon_whatever_the_others_do(asked: Asked) -> None:
    call = Call(asked)
    call.answer(0)
    call.fail(1)
    asked.clock.advance(0.2)
    assert call.num_ended == 0
    asked.clock.advance(0.1)
    assert (call.num_ended, call.gather.fails) == (1, True)
    with pytest.raises(ValueError, match="bad 1"):
        call.gather.collect()
    call.fail(2)
    call.answer(3)
    assert call.num_ended == 1
    with pytest.raises(ValueError, match="bad 1"):
        call.gather.collect()


def test_failures_that_follow_the_first_closely_are_reported_with_it(asked: Asked) -> None:
    call = Call(asked)
    call.fail(3)
    asked.clock.advance(0.2)
    call.fail(0)
    asked.clock.advance(0.1)
    with pytest.raises(ValueError, match="on 2 ranks; first rank 0: ValueError: bad 0; rank 3: ") as caught:
        call.gather.collect()
    assert isinstance(caught.value, MeshError)
    assert sorted(caught.value.failures) == [0, 3]
    assert call.num_ended == 1


@pytest.mark.parametrize("apart_s", [0.0, 0.2, 0.3])
def test_the_class_of_the_error_does_not_depend_on_time(asked: Asked, apart_s: float) -> None:
    call = Call(asked)
    call.fail(0)
    asked.clock.advance(apart_s)
    call.fail(1)
    asked.clock.advance(1.0)
    with pytest.raises(ValueError, match="bad 0") as caught:
        call.gather.collect()
    assert isinstance(caught.value, MeshError) and isinstance(caught.value, ActorError)


def test_a_callee_that_notices_the_time_limit_first_is_late_like_the_others(asked: Asked) -> None:
    call = Call(asked, timeout_s=5.0)
    call.answer(0, 1)
    call.take(2, CallTimeout("actor staff[2] on n2, endpoint work", (), 5.0))
    asked.clock.advance(6.0)
    with pytest.raises(CallTimeout) as caught:
        call.gather.collect()
    assert (caught.value.where, caught.value.others) == ("actor staff[2] on n2, endpoint work", (3,))


def test_the_last_answer_ends_a_failing_call_at_once(asked: Asked) -> None:
    call = Call(asked)
    call.fail(0)
    call.answer(1, 2, 3)
    assert call.num_ended == 1
    asked.clock.advance(1.0)
    assert call.num_ended == 1


def test_a_call_whose_failures_are_all_deaths_says_so(asked: Asked) -> None:
    call = Call(asked)
    for place in range(NUM):
        call.die(place)
    with pytest.raises(MeshDied) as caught:
        call.gather.collect()
    assert isinstance(caught.value, ActorDied) and not isinstance(caught.value, ActorError)
    assert sorted(caught.value.failures) == [0, 1, 2, 3]


def test_a_call_that_times_out_names_the_missing_and_cancels_only_them(asked: Asked) -> None:
    call = Call(asked, timeout_s=5.0)
    call.answer(0, 2)
    asked.clock.advance(4.9)
    assert call.num_ended == 0
    asked.clock.advance(0.2)
    assert (call.num_ended, call.gather.fails, asked.cancelled) == (1, True, [FIRST + 1, FIRST + 3])
    with pytest.raises(CallTimeout) as caught:
        call.gather.collect()
    late = caught.value
    assert (late.where, late.others, late.timeout_s) == ("actor staff[1] on n1, endpoint work", (3,), 5.0)
    call.answer(1, 3)
    with pytest.raises(CallTimeout):
        call.gather.collect()


def test_a_call_that_ended_in_time_does_not_time_out(asked: Asked) -> None:
    call = Call(asked, timeout_s=5.0)
    call.answer(0, 1, 2, 3)
    asked.clock.advance(10.0)
    assert (call.num_ended, asked.cancelled) == (1, [])


def test_a_failure_at_the_time_limit_is_reported_instead_of_the_missing_answers(asked: Asked) -> None:
    call = Call(asked, timeout_s=5.0)
    asked.clock.advance(4.9)
    call.fail(2)
    asked.clock.advance(10.0)
    assert call.num_ended == 1
    with pytest.raises(ValueError, match="bad 2"):
        call.gather.collect()


def test_a_call_that_collects_waits_for_all_and_has_failures_among_its_results(asked: Asked) -> None:
    call = Call(asked, timeout_s=5.0, collects=True)
    call.fail(0)
    call.answer(1, 2)
    asked.clock.advance(4.0)
    assert call.num_ended == 0
    asked.clock.advance(2.0)
    assert (call.num_ended, call.gather.fails) == (1, False)
    values, failures = call.gather.collect()
    assert values[1:3] == ["value 1", "value 2"]
    assert sorted(failures) == [0, 3] and (values[0], values[3]) == (failures[0], failures[3])
    assert isinstance(failures[0], ValueError) and isinstance(failures[3], CallTimeout)


def test_a_full_mailbox_is_named_and_has_nothing_to_cancel(asked: Asked) -> None:
    asked.held = [1]
    call = Call(asked, timeout_s=5.0)
    call.answer(0, 3)
    asked.clock.advance(5.0)
    with pytest.raises(CallTimeout) as caught:
        call.gather.collect()
    assert caught.value.__notes__ == ["not sent to ranks 1: their mailboxes were full all the time"]
    assert asked.cancelled == [FIRST + 2]


def test_a_call_that_cannot_be_sent_awaits_nothing(asked: Asked) -> None:
    asked.error = TypeError("a lock cannot be pickled")
    with pytest.raises(TypeError, match="a lock"):
        Call(asked, timeout_s=5.0)
    asked.clock.advance(10.0)
    assert (asked.clock.timers, asked.cancelled) == ([], [])


def test_a_cancelled_call_cancels_the_unanswered_and_never_completes(asked: Asked) -> None:
    call = Call(asked, timeout_s=5.0)
    call.answer(0)
    call.gather.give_up()
    call.answer(1, 2, 3)
    asked.clock.advance(10.0)
    assert (call.num_ended, asked.cancelled) == (0, [FIRST + 1, FIRST + 2, FIRST + 3])


def test_an_answer_that_cannot_be_loaded_is_a_failure_of_its_rank(asked: Asked) -> None:
    call = Call(asked)
    call.answer(0, 1, 2)
    call.take(3, Frame(Kind.RESULT, 0, 0, b"no pickle"))
    with pytest.raises(MonarchError):
        call.gather.collect()
