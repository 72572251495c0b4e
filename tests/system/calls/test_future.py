"""Futures: read by threads, by coroutines and by the standard library, any number of times."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import signal
import sys
import threading
from functools import partial

import pytest

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import returns_future
from monarch_hpc.core.process.signals import from_handler
from monarch_hpc.transport.engine.engine import Engine

_PATIENCE_S = 60.0


@pytest.fixture
def futures(engine: Engine) -> list[Future[int]]:
    return [Future(engine, lambda: "actor a[0] on n1, endpoint e") for _ in range(3)]


def fail(error: Exception) -> int:
    raise error


def cancel(future: Future[int]) -> None:
    assert future.cancel()


async def awaited(future: Future[int]) -> int:
    return await asyncio.wait_for(future.as_asyncio(), _PATIENCE_S)


def build(built: list[int]) -> int:
    built.append(1)
    return 7


def test_a_timed_out_read_says_whose_answer_is_missing_and_can_be_repeated(futures: list[Future[int]]) -> None:
    future = futures[0]
    for read in (future.get, future.result, future.exception):
        with pytest.raises(TimeoutError, match=r"no answer in 0.01 s from actor a\[0\] on n1, endpoint e; .* again"):
            read(0.01)
    assert (future.done(), future.running(), future.cancelled()) == (False, True, False)
    assert repr(future) == "<Future waiting for actor a[0] on n1, endpoint e>"
    future.set_result(7)
    assert (future.done(), future.running(), future.cancelled()) == (True, False, False)
    assert future.get() == future.result(0) == future.get() == 7 and future.exception() is None
    assert repr(future) == "<Future answered by actor a[0] on n1, endpoint e>"


def test_a_value_is_rebuilt_once_and_an_error_is_raised_at_every_read(futures: list[Future[int]]) -> None:
    built: list[int] = []
    futures[0].set_resolver(lambda: build(built))
    assert [futures[0].get() for _ in range(3)] == [7] * 3 and built == [1]
    error = KeyError("k")
    futures[1].set_resolver(lambda: fail(error))
    futures[2].set_exception(error)
    for future in futures[1:]:
        for _ in range(2):
            with pytest.raises(KeyError):
                future.get()
        assert future.exception() is error


def test_a_read_without_memory_for_a_look_at_its_error_can_be_repeated(
    futures: list[Future[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left every later read waiting."""
    built: list[int] = []

    def rebuild() -> int:
        if not built:
            built.append(1)
            raise MemoryError("no memory for the value")
        return build(built)

    def no_memory(_: BaseException) -> bool:
        raise MemoryError("no memory for a look")

    futures[0].set_resolver(rebuild)
    with monkeypatch.context() as patch:
        patch.setattr("monarch_hpc.actor.future.may_be_signal", no_memory)
        with pytest.raises(MemoryError, match="a look"):
            futures[0].get()
    assert futures[0].get() == 7


def test_only_the_first_end_counts(futures: list[Future[int]]) -> None:
    first, second, _ = futures
    first.set_result(1)
    first.set_result(2)
    first.set_exception(KeyError("late"))
    assert first.get() == 1 and not first.cancel() and not first.cancelled()
    assert second.cancel() and second.cancel() and second.cancelled() and second.done()
    second.set_result(2)
    for read in (second.get, second.result, second.exception):
        with pytest.raises(concurrent.futures.CancelledError):
            read()
    assert repr(second).startswith("<Future cancelled, was waiting for actor a[0]")


def test_many_threads_read_one_future(engine: Engine, futures: list[Future[int]]) -> None:
    built: list[int] = []
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(futures[0].get, _PATIENCE_S) for _ in range(8)]
        engine.call_later(0.02, lambda: futures[0].set_resolver(lambda: build(built)))
        assert [read.result(_PATIENCE_S) for read in reads] == [7] * 8
    assert built == [1]


def test_wait_and_as_completed_take_it(engine: Engine, futures: list[Future[int]]) -> None:
    first, second, third = futures
    ours: list[concurrent.futures.Future[int]] = [*futures]
    assert concurrent.futures.wait(ours, 0.01).not_done == set(ours)
    engine.call_later(0.01, lambda: second.set_resolver(lambda: 2))
    done, left = concurrent.futures.wait(ours, _PATIENCE_S, concurrent.futures.FIRST_COMPLETED)
    assert (done, left) == ({second}, {first, third})
    engine.call_later(0.01, lambda: first.set_exception(KeyError("k")))
    done, left = concurrent.futures.wait(ours, _PATIENCE_S, concurrent.futures.FIRST_EXCEPTION)
    assert (done, left) == ({first, second}, {third})
    seen = concurrent.futures.as_completed(ours, _PATIENCE_S)
    assert {next(seen), next(seen)} == {first, second}
    engine.call_later(0.01, lambda: cancel(third))
    assert next(seen) is third and not list(seen)


def test_it_mixes_with_the_futures_of_a_pool(engine: Engine, futures: list[Future[int]]) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        engine.call_later(0.01, lambda: futures[0].set_result(1))
        mixed: list[concurrent.futures.Future[int]] = [pool.submit(lambda: 2), futures[0]]
        assert {future.result() for future in concurrent.futures.as_completed(mixed, _PATIENCE_S)} == {1, 2}


def test_callbacks_run_once_each_and_one_that_fails_stops_no_other(
    engine: Engine, futures: list[Future[int]], caplog: pytest.LogCaptureFixture
) -> None:
    called: list[int] = []
    futures[0].add_done_callback(lambda _: fail(KeyError("mine")))
    futures[0].add_done_callback(lambda future: called.append(future.result()))
    futures[0].set_result(5)
    futures[0].add_done_callback(lambda future: called.append(future.result() + 1))
    assert called == [5, 6]
    assert "a callback of <Future answered by actor a[0] on n1, endpoint e> failed" in caplog.text
    futures[1].add_done_callback(lambda _: futures[2].get())
    engine.call_soon(lambda: futures[1].set_result(1))
    assert engine.wait(lambda: "must not wait for a future" in caplog.text, _PATIENCE_S)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_the_engine_goes_on_after_whatever_a_callback_raises(
    engine: Engine, futures: list[Future[int]], error: type[BaseException]
) -> None:
    called = threading.Event()

    def callback(_future: Future[int]) -> None:
        called.set()
        raise error

    futures[0].add_done_callback(callback)
    engine.call_soon(lambda: futures[0].set_result(1))  # on the engine's thread, as no other thread drives
    assert called.wait(_PATIENCE_S)
    engine.call_soon(lambda: futures[1].set_result(2))
    assert asyncio.run(awaited(futures[1])) == 2


def test_what_exits_in_a_callback_ends_neither_a_read_nor_the_communication(
    engine: Engine, futures: list[Future[int]], caplog: pytest.LogCaptureFixture
) -> None:
    faults: list[str] = []
    engine.on_fault = lambda what, _error: faults.append(what)
    first, second, third = futures
    # Read by this, the main thread, then by another one: each drives, and runs the callback.
    for future in (first, second):
        future.add_done_callback(lambda _: sys.exit(3))
        engine.call_later(0.01, partial(future.set_result, 1))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert (future.get(_PATIENCE_S) if future is first else pool.submit(future.get, _PATIENCE_S).result()) == 1
    engine.wait(lambda: caplog.text.count("SystemExit: 3") >= 2, _PATIENCE_S)
    assert caplog.text.count("a callback of <Future answered by") == 2 and "Traceback" in caplog.text
    engine.call_later(0.01, partial(third.set_result, 7))
    assert third.get(_PATIENCE_S) == 7 and not faults


def test_the_exit_of_a_signal_handler_is_told_from_that_of_the_code_it_interrupts() -> None:
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: sys.exit(4))
    try:
        with pytest.raises(SystemExit) as handlers:
            signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(SystemExit) as own:
            sys.exit(4)
        assert from_handler(handlers.value) and from_handler(KeyboardInterrupt()) and not from_handler(own.value)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:  # no handler runs on another thread
            assert not pool.submit(from_handler, KeyboardInterrupt()).result(_PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_the_engine_goes_on_where_even_the_log_fails(
    engine: Engine, futures: list[Future[int]], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    refused = threading.Event()

    def refuse(_filters: object, _record: logging.LogRecord) -> bool:
        refused.set()
        raise error

    monkeypatch.setattr(logging.getLogger("monarch_hpc.actor.future"), "filter", refuse.__get__(engine))
    monkeypatch.setattr(logging.getLogger("monarch_hpc.transport.engine.engine"), "filter", refuse.__get__(engine))
    futures[0].add_done_callback(lambda _: fail(KeyError("mine")))
    engine.call_soon(lambda: futures[0].set_result(1))  # on the engine's thread, as no other thread drives
    assert refused.wait(_PATIENCE_S)
    engine.call_soon(lambda: futures[1].set_result(2))
    assert asyncio.run(awaited(futures[1])) == 2


def test_a_callback_that_awaits_is_refused(engine: Engine, futures: list[Future[int]]) -> None:
    async def wait() -> int:
        return await futures[1]

    def check(_future: Future[int]) -> None:
        with pytest.raises(RuntimeError, match="must not wait for a future"):
            asyncio.run(asyncio.wait_for(wait(), _PATIENCE_S))
        futures[2].set_result(1)

    futures[0].add_done_callback(check)
    engine.call_soon(lambda: futures[0].set_result(1))
    assert futures[2].get(_PATIENCE_S) == 1


def test_get_in_a_running_loop_warns_whether_it_blocks_or_not(engine: Engine, futures: list[Future[int]]) -> None:
    async def main() -> int:
        engine.call_later(0.01, lambda: futures[0].set_result(1))
        for _ in range(2):
            with pytest.warns(RuntimeWarning, match="write 'await future' instead"):
                assert futures[0].get(_PATIENCE_S) == 1
        engine.call_later(0.01, lambda: futures[1].set_result(2))
        with pytest.warns(RuntimeWarning, match="write 'await future' instead"):
            futures[1].result()
        return futures[0].result()

    assert asyncio.run(main()) == 1


def test_ctrl_c_ends_a_read_that_blocks_a_loop(engine: Engine, futures: list[Future[int]]) -> None:
    async def main() -> None:
        engine.call_later(0.01, lambda: os.kill(os.getpid(), signal.SIGINT))
        with pytest.warns(RuntimeWarning):
            futures[0].get(_PATIENCE_S)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert futures[0].running()


def test_a_task_that_was_cancelled_just_before_reads_nothing(futures: list[Future[int]]) -> None:
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None and task.cancel()
        with pytest.warns(RuntimeWarning):
            futures[0].get(_PATIENCE_S)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(main())


def test_a_coroutine_of_a_future_runs_beside_the_loop_that_reads_it() -> None:
    @returns_future
    async def slow(value: int, nap_s: float = 0.01) -> int:
        await asyncio.sleep(nap_s)
        return value

    async def main() -> list[int]:
        future, awaited, late = slow(1), slow(2), slow(3, nap_s=_PATIENCE_S)
        with pytest.warns(RuntimeWarning):
            values = [future.get(_PATIENCE_S), future.get(_PATIENCE_S)]
        task = asyncio.ensure_future(awaited.as_asyncio())
        await asyncio.sleep(0)
        with pytest.warns(RuntimeWarning), pytest.raises(RuntimeError, match="slow runs on the event loop that get"):
            awaited.get(_PATIENCE_S)
        with pytest.warns(RuntimeWarning), pytest.raises(TimeoutError):
            late.get(0.001)
        return [*values, await task]

    assert asyncio.run(main()) == [1, 1, 2]


def test_coroutines_read_it_in_every_way(engine: Engine, futures: list[Future[int]]) -> None:
    first, second, third = futures

    async def main() -> list[int]:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first.as_asyncio(), 0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.01)
        assert first.running() and not first._callbacks
        for index, future in enumerate((first, second)):
            engine.call_later(0.01, lambda future=future, index=index: future.set_result(index))  # type: ignore[misc]
        answers = [await first, *await asyncio.gather(second, asyncio.wrap_future(second), second.as_asyncio())]
        engine.call_later(0.01, lambda: cancel(third))
        with pytest.raises(asyncio.CancelledError):
            await third
        return answers

    assert asyncio.run(main()) == [0, 1, 1, 1]


def test_an_answer_after_the_loop_is_gone_harms_nobody(
    futures: list[Future[int]], caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures[0].add_done_callback(lambda _: loop.call_soon_threadsafe(print))
        waiting = asyncio.ensure_future(futures[1])
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(main())
    for future in futures:
        future.set_result(1)
    assert caplog.text.count("failed") == 1  # the user's callback, not ours
    assert [future.get() for future in futures] == [1, 1, 1]


def test_a_read_and_an_end_that_race_lose_nothing(engine: Engine) -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(300):
            future: Future[int] = Future(engine)
            completing, cancelling = pool.submit(future.set_result, 1), pool.submit(future.cancel)
            assert concurrent.futures.wait([future], _PATIENCE_S).done == {future}
            completing.result()
            assert future.cancelled() == cancelling.result()
