"""Futures of coroutines: the first read runs the body."""

from __future__ import annotations

import asyncio
import contextvars
import threading

import pytest

from monarch_hpc.actor.local_future import completed, pending, returns_future

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")
runs: list[str] = []


@returns_future
async def double(number: int) -> int:
    runs.append(place.get())
    await asyncio.sleep(0)
    return 2 * number


@returns_future
async def fail() -> None:
    raise ValueError("no")


@returns_future
async def forever() -> None:
    await asyncio.Event().wait()


def test_it_runs_once_when_it_is_read_in_the_context_of_the_caller() -> None:
    runs.clear()
    token = place.set("here")
    future = double(4)
    place.reset(token)
    assert runs == [] and not future.done()
    assert future.get() == future.get() == 8
    assert runs == ["here"]
    double(1)  # never read


def test_a_coroutine_reads_it_on_its_own_loop() -> None:
    async def read() -> list[int]:
        future = double(4)
        first, second = await asyncio.gather(future.as_asyncio(), future.as_asyncio())
        return [first, second, await future]

    runs.clear()
    assert asyncio.run(read()) == [8, 8, 8]
    assert len(runs) == 1


def test_what_it_raises_is_raised_at_every_read() -> None:
    future = fail()
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            future.get()
    assert isinstance(future.exception(), ValueError)

    async def read() -> None:
        with pytest.raises(ValueError, match="no"):
            await fail()

    asyncio.run(read())


def test_a_read_that_is_late_ends_it() -> None:
    future = forever()
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        future.get()


def test_who_stops_to_await_does_not_end_it() -> None:
    async def read() -> bool:
        future = forever()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(future.as_asyncio(), 0.01)
        return future.done()

    assert asyncio.run(read()) is False


def test_a_second_thread_gets_the_same() -> None:
    future = pending("a thread")
    got: list[object] = []
    reader = threading.Thread(target=lambda: got.append(future.get(30)))
    reader.start()
    future.set_result(7)
    reader.join()
    assert got == [7] and completed(3).get() == 3


def test_only_coroutines_are_taken() -> None:
    with pytest.raises(TypeError, match="async def"):
        returns_future(len)  # type: ignore[arg-type]
