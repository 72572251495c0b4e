"""A call to every actor of a mesh, the answer of one of which is wanted before the others are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.mesh.calls.answer import read_answer
from monarch_hpc.mesh.calls.endpoint import Endpoint
from monarch_hpc.mesh.calls.gather import Gather
from monarch_hpc.wire.frames import Frame

__all__ = ["WatchedAnswer", "fold_watched"]

T = TypeVar("T")


class WatchedAnswer(Future[T]):
    """The future of what *finish* returns for the answer of one actor; it takes the result, and its failure or None.

    Args:
        place: of the actor in the view.
        finish: runs in the first thread that reads the future.
    """

    def __init__(self, place: int, finish: Callable[[Any, BaseException | None], T]) -> None:
        super().__init__(current_runtime().engine, lambda: f"the actor at place {place}")
        self.place = place
        self._finish = finish

    def answer(self, given: Frame | MonarchError) -> None:
        """Complete the future."""
        self._complete(given, fails=False)

    def _rebuild(self, raw: Any) -> T:
        return self._finish(*read_answer(raw))


class _WatchedGather(Gather):
    watched: WatchedAnswer[Any] | None
    """None once it is answered: it refers to this object, and a cycle would keep it until garbage is collected."""

    def _take(self, index: int, given: Frame | MonarchError, *, is_last: bool) -> None:
        if self.watched is not None and index == self.watched.place:
            self._answer(self.watched, given)
        super()._take(index, given, is_last=is_last)

    def _end(self) -> None:
        super()._end()
        if self.watched is not None:
            self._answer(self.watched, self._late(self.watched.place))

    def _answer(self, watched: WatchedAnswer[Any], given: Frame | MonarchError) -> None:
        self.watched = None
        watched.answer(given)


def fold_watched(
    endpoint: Endpoint[..., Any], watched: WatchedAnswer[Any], finish: Callable[[list[Any]], T], *args: object
) -> Future[T]:
    """`Endpoint.fold`, where *watched* is completed by the answer of its actor."""
    gather = _WatchedGather(current_runtime(), endpoint._callee, endpoint._name, endpoint._options)
    gather.watched = watched
    watched.watch(gather.runtime.recorder, gather.calls)
    return endpoint._begin(gather, args, {}, lambda gather: finish(gather.collect()[0]))
