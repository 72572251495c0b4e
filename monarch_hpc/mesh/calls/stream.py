"""The answers to one call of an actor mesh one by one, in the order of arrival."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Generic, TypeVar, cast

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.shape import Extent, Point
from monarch_hpc.mesh.calls.answer import CallOptions, is_result, read_answer
from monarch_hpc.mesh.calls.callee import Answers, Callee
from monarch_hpc.wire.frames import Frame

__all__ = ["Items", "Queue", "Stream"]

R = TypeVar("R")


class Queue(Answers):
    """Completes the first future with the first answer, the second future with the second answer, and so on."""

    def __init__(self, runtime: Runtime, callee: Callee, method: str, options: CallOptions) -> None:
        super().__init__(runtime, callee, method, options)
        self.futures: list[Future[Any]] = [Future(runtime.engine, self.missing, self.give_up) for _ in callee.ranks]
        for future in self.futures:
            future.watch(runtime.recorder, self.calls)
        self.order: list[int] = []  # places in the order of their answers

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        self._complete(index, given)
        if is_last:
            self.drop()

    def expire(self) -> None:
        with self._lock:
            late = [] if self._over else [index for index, answer in enumerate(self._answers) if answer is None]
            self._over = True
        self.withdraw()
        for index in late:
            self._complete(index, self._late(index))

    def give_up(self) -> None:
        """Cancel the unanswered calls once every future is cancelled or done."""
        if all(future.done() for future in self.futures):
            self.drop()
            self.withdraw()

    def _complete(self, index: int, given: Frame | MonarchError) -> None:
        def resolve() -> object:
            value, failure = read_answer(given)
            if failure is not None:
                raise failure
            return value

        with self._lock:
            future = self.futures[len(self.order)]
            self.order.append(index)
        future.set_resolver(resolve, fails=not is_result(given))


class Stream(Generic[R]):
    """One future for each called actor, in the order of arrival: the first future gets the first answer, and so on.

    Iteration does not wait, reading a future does: ``for future in stream: future.get()``. `items` gives each answer
    together with the coordinates of its actor.
    """

    def __init__(self, queue: Queue, extent: Extent) -> None:
        self._queue = queue
        self._extent = extent

    def __len__(self) -> int:
        return len(self._queue.futures)

    def __iter__(self) -> Iterator[Future[R]]:
        return iter(self._queue.futures)

    def places(self) -> Iterator[tuple[int, Future[R]]]:
        """Rank and future of each actor in the order of their answers; waits for each."""
        for number, future in enumerate(self._queue.futures):
            future.exception()
            yield self._queue.order[number], future

    def items(self) -> Items[R]:
        """The answers as they arrive, each with its coordinates; for ``for`` and for ``async for``."""
        return Items(self._queue, self._extent)


class Items(Generic[R]):
    """Iterator over (point, result) pairs in the order of arrival; waits for each.

    The exception of a rank is raised by the step that reaches it, and the iteration can continue after that; with
    ``on_error="collect"`` it takes the place of the result.
    """

    def __init__(self, queue: Queue, extent: Extent) -> None:
        self._queue = queue
        self._extent = extent
        self._next = 0

    def __iter__(self) -> Iterator[tuple[Point, R]]:
        return self

    def __len__(self) -> int:
        return len(self._queue.futures)

    @property
    def num_taken(self) -> int:
        """The number of answers that the iteration has passed."""
        return self._next

    def waiting(self, most: int) -> list[Point]:
        """The coordinates of the actors that have not answered; none if they are more than *most*."""
        answered = set(self._queue.order)
        if not 0 < len(self) - len(answered) <= most:
            return []
        return [self._extent.point(rank) for rank in range(len(self)) if rank not in answered]

    def __next__(self) -> tuple[Point, R]:
        if self._next == len(self._queue.futures):
            raise StopIteration
        failure = self._queue.futures[self._next].exception()
        return self._item(failure)

    def __aiter__(self) -> AsyncIterator[tuple[Point, R]]:
        return self

    async def __anext__(self) -> tuple[Point, R]:
        if self._next == len(self._queue.futures):
            raise StopAsyncIteration
        future = self._queue.futures[self._next]
        try:
            await future
        except Exception:
            if not future.done():
                raise
        return self._item(future.exception())

    def _item(self, failure: BaseException | None) -> tuple[Point, R]:
        future = self._queue.futures[self._next]
        point = self._extent.point(self._queue.order[self._next])
        self._next += 1
        if failure is None:
            return point, future.result()
        if not self._queue.options.collects:
            raise BaseException.with_traceback(failure, None)
        return point, cast(R, failure)
