"""Futures: read by threads, by coroutines and by the standard library, any number of times."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading

import pytest

from monarch_hpc.actor.future import Future
from monarch_hpc.transport.engine.engine import Engine

_PATIENCE_S = 20.0


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


def test_get_in_a_running_loop_says_what_to_write_whether_it_would_block_or_not(futures: list[Future[int]]) -> None:
    async def main() -> int:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="write 'await future' instead"):
                futures[0].get(_PATIENCE_S)
            futures[0].set_result(1)
        with pytest.raises(RuntimeError, match="write 'await future' instead"):
            futures[1].result()
        return futures[0].result()

    assert asyncio.run(main()) == 1


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
