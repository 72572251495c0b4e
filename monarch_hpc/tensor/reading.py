"""Reads values from a rank, and raises what failed there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.core.shape import Point
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.worker.actor import Reply

__all__ = ["answer_of", "check_readable", "read_values"]


def answer_of(view: View, reply: Reply) -> Any:
    """The value in the reply to a read.

    Raises:
        DeviceMeshError: a rank is gone.
        Exception: the value, or an effect issued before the read, failed.
    """
    kind, value, effects = reply
    if view.engine.broken is not None:
        raise view.engine.broken.with_traceback(None)  # it is raised again and again
    if kind == "failed":
        raise view.engine.error_of(value)
    for effect in effects:
        error = view.engine.error_of_unread(effect)
        if error is not None:
            raise error
    return value


def check_readable(view: View) -> None:
    """Refuse to read a value.

    Raises:
        DeviceMeshError: a rank is gone.
        TypeError: a step is being captured.
    """
    if view.engine.broken is not None:
        raise view.engine.broken.with_traceback(None)  # it is raised again and again
    if view.engine.recorder is not None:
        view.engine.recorder.refuse_read()


def read_values(
    view: View, place: dict[str, int], numbers: list[int], finish: Callable[[list[Any]], Any]
) -> Future[Any]:
    """The future of what *finish* makes of values on one rank.

    Args:
        view: the ranks.
        place: coordinates of the rank.
        numbers: the values.
        finish: takes them.

    Raises:
        DeviceMeshError: a rank is gone.
        IndexError: a coordinate is outside its dimension.
    """
    check_readable(view)
    chosen = view.workers.slice(**place)
    chosen_rank = view.region.slice(**place).base_rank(0)
    view.engine.flush()

    def read(replies: list[Any], failures: dict[Point, BaseException]) -> Any:
        if failures:
            error = next(iter(failures.values()))
            view.engine.lose(chosen_rank, error)
            raise view.engine.broken or error
        return finish(answer_of(view, replies[0]))

    future: Future[Any] = chosen.read.options(on_error="collect").fold_some(read, numbers)
    return future
