"""Waits for other ranks, and their end."""

from __future__ import annotations

import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Event, get_ident
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.worker.collectives.waits import Waits


def test_a_call_on_another_thread_returns_or_raises_as_here() -> None:
    waits = Waits()
    first = waits.call(get_ident)
    assert first != get_ident()
    assert waits.call(get_ident) == first  # which was idle
    with pytest.raises(ZeroDivisionError):
        waits.call(lambda: 1 / 0)
    waits.abort("over")


def test_an_abort_ends_a_call_that_goes_on() -> None:
    waits, began, goes_on = Waits(), Event(), Event()

    def call() -> None:
        began.set()
        goes_on.wait()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(waits.call, call)
        assert began.wait(60)
        waits.abort("rank 1 died")
        waits.abort("a later cause")
        with pytest.raises(RuntimeError, match="rank 1 died"):
            waiting.result(60)
        goes_on.set()
    with pytest.raises(RuntimeError, match="rank 1 died"):
        waits.call(call)


def test_a_question_is_repeated_until_its_time_is_over() -> None:
    waits = Waits()
    given: list[float] = []

    def late(timeout_s: float) -> str:
        given.append(timeout_s)
        if len(given) < 3:
            raise TimeoutError
        return "answer"

    assert waits.ask(late, 100.0) == "answer"
    assert len(given) == 3 and max(given) < 1

    def never(timeout_s: float) -> str:
        raise TimeoutError(f"nothing in {timeout_s} s")

    with pytest.raises(TimeoutError, match="nothing in"):
        waits.ask(never, 0.0)

    def ends(_timeout_s: float) -> str:
        waits.abort("rank 1 died")
        raise TimeoutError

    with pytest.raises(RuntimeError, match="rank 1 died"):
        waits.ask(ends, 100.0)


def test_a_future_ends_once() -> None:
    waits, given = Waits(), torch.futures.Future[int]()
    found = waits.future(given, lambda: None)
    waits.abort("rank 1 died")
    with pytest.raises(RuntimeError, match="rank 1 died"):
        found.wait()
    given.set_result(1)
    with pytest.raises(RuntimeError, match="rank 1 died"):
        found.wait()
    with pytest.raises(RuntimeError, match="rank 1 died"):
        waits.future(given, lambda: None)


@pytest.mark.parametrize("aborted", [True, False])
def test_a_failure_is_one_for_c_code_too(aborted: bool) -> None:
    # DDP reads results in C++: it would take an exception for a tensor that is none there, and crash.
    waits, given = Waits(), torch.futures.Future[Any]()
    together = torch.futures.collect_all([waits.future(given, lambda: None)])
    if aborted:
        waits.abort("rank 1 died")
    else:
        given.set_exception(ValueError("rank 1 died"))
    with pytest.raises(RuntimeError, match="rank 1 died"):
        together.wait()


def test_a_value_arrives_after_what_comes_with_it() -> None:
    waits, given, done = Waits(), torch.futures.Future[int](), list[int]()
    found = waits.future(given, lambda: done.append(1))
    given.set_result(7)
    assert (found.wait(), done) == (7, [1])


def test_a_future_keeps_nothing_of_the_code_that_aborts_it() -> None:
    class Kept:
        pass

    def abort() -> weakref.ref[Kept]:
        kept = Kept()
        waits.abort("rank 1 died")
        return weakref.ref(kept)

    waits, given = Waits(), torch.futures.Future[int]()
    found = waits.future(given, lambda: None)
    assert abort()() is None
    with pytest.raises(RuntimeError, match="rank 1 died"):
        found.wait()
