"""Reads values from a rank, and raises what failed there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.core.errors import DeviceMeshError, SupervisionError
from monarch_hpc.core.shape import Point
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.calls.watched import WatchedAnswer
from monarch_hpc.tensor.stream.copies import rebuild
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.failures import FailedOp
from monarch_hpc.tensor.stream.frames import FrameRead
from monarch_hpc.tensor.stream.holdings import Reply
from monarch_hpc.tensor.stream.sites import Site, site_here

__all__ = ["answer_of", "check_readable", "read_values", "reread", "retried", "worker_at"]

T = TypeVar("T")


def answer_of(view: View, reply: Reply, expected: int = 0, epoch: int | None = None, site: Site | None = None) -> Any:
    """The value in the reply to a read.

    Args:
        expected: the version that the rank must have: all commits that were issued before.
        epoch: that of the engine when it was asked; None for the current one.
        site: the line that reads; None where nothing is copied.

    Raises:
        DeviceMeshError: a rank is gone.
        RemoteOpError: the value could not be copied.
        Exception: the value, or an effect issued before the read, failed.
    """
    kind, value, effects, version, num_changes = reply
    engine = view.engine
    if kind == "halted" or version < expected:
        _check_current(view, epoch)
        engine.suspect(view.ranks[0], str(value) if kind == "halted" else f"it is at version {version} of {expected}")
    if engine.broken is not None:
        raise engine.failure()
    if kind == "failed":
        raise engine.error_of(value)
    for effect in effects:
        error = engine.error_of_unread(effect)
        if error is not None:
            raise error
    if engine.recovery is not None:
        engine.recovery.release(version, num_changes)
    if kind == "refused":
        assert site is not None, "only copies are refused"
        rank, failure = value
        raise FailedOp(rank, site, failure).error()
    return value


def _check_current(view: View, epoch: int | None) -> None:
    """Refuse an answer that is about a mesh which was healed since; it must not break that again.

    Raises:
        DeviceMeshError: it is.
    """
    engine = view.engine
    if epoch is not None and epoch < engine.epoch and engine.broken is None:
        raise DeviceMeshError(engine.name, "lost", -1, "a value that was being read when the mesh was healed")


def check_readable(view: View) -> None:
    """Refuse to read a value.

    Raises:
        DeviceMeshError: a rank is gone.
        TypeError: a step is being captured.
        ValueError: a heal has left out a rank.
    """
    view.engine.check()
    view.engine.check_present(view.ranks)
    if view.engine.recorder is not None:
        view.engine.recorder.refuse_read()


def worker_at(view: View, place: dict[str, int]) -> tuple[ActorMesh[Any], int]:
    """The worker at some coordinates, in the order of the dimensions, and its rank.

    Raises:
        IndexError: a coordinate is outside its dimension.
    """
    found = view.at.get(at := tuple(place.values()))
    if found is None:
        found = view.at[at] = view.workers.slice(**place), view.region.slice(**place).base_rank(0)
    return found


def read_values(
    view: View, place: dict[str, int], numbers: list[int], finish: Callable[[list[Any]], Any], source: int = 0
) -> Future[Any]:
    """The future of what *finish* makes of values on one rank.

    Args:
        view: the ranks.
        place: coordinates of the rank.
        numbers: the values.
        finish: takes them.
        source: number of a tensor whose value that is, if a rank has it at hand; 0 if there is none.

    Raises:
        DeviceMeshError: a rank is gone.
        IndexError: a coordinate is outside its dimension.
    """
    recovery = view.engine.recovery
    expected, only_read = (0, False) if recovery is None else (recovery.expected, recovery.only_read)
    check_readable(view)
    chosen, chosen_rank = worker_at(view, place)
    epoch, asked, site = view.engine.epoch, tuple(numbers), site_here(1)

    def read(reply: Reply | None, failure: BaseException | None) -> Any:
        try:
            values = retried(view, partial(answered, reply, failure), again, epoch)
        except DeviceMeshError:
            found = reread(view, source, expected, only_read=only_read)
            if found is None:
                raise
            return finish([found])
        return finish([rebuild(one) for one in values])

    def answered(reply: Reply | None, failure: BaseException | None) -> Any:
        if reply is None:
            _check_current(view, epoch)
            view.engine.lose(chosen_rank, failure)
            raise view.engine.failure()
        return answer_of(view, reply, expected, epoch, site)

    def again() -> Any:
        return answer_of(view, chosen.read.call_one(asked).get(), expected, site=site)

    def read_frame(answer: tuple[Any, Reply] | None, failure: BaseException | None) -> Any:
        return read(None if answer is None else answer[1], failure)

    def read_alone(replies: list[Reply], failures: dict[Point, BaseException]) -> Any:
        return read(next(iter(replies), None), next(iter(failures.values()), None))

    with_frame: WatchedAnswer[Any] = WatchedAnswer(view.ranks.index(chosen_rank), read_frame)
    if view.engine.flush(FrameRead(view, view.workers, chosen_rank, asked, with_frame)):
        return with_frame
    alone: Future[Any] = chosen.read.fold_some(read_alone, asked)
    return alone


def retried(view: View, first: Callable[[], T], again: Callable[[], T], epoch: int) -> T:
    """What *first* returns, or, where the mesh heals by itself and is healed meanwhile, *again*.

    Args:
        view: the ranks.
        first: takes the answer to what was asked already.
        again: asks.
        epoch: that of the engine when it was asked.

    Raises:
        DeviceMeshError: they raised it, and the mesh was not healed.
    """
    engine, ask = view.engine, first
    while True:
        try:
            return ask()
        except (DeviceMeshError, SupervisionError) as error:
            if engine.heals is None:
                raise
            if isinstance(error, SupervisionError):
                engine.lose(-1, error)
            elif engine.broken is None and engine.epoch == epoch:
                raise
            engine.check()
            ask, epoch = again, engine.epoch


def reread(view: View, source: int, expected: int, *, only_read: bool) -> Any:
    """The value of a tensor of a broken mesh, if the step that it is of is done all the same; else None."""
    recovery = view.engine.recovery
    if recovery is None or not source or view.engine.broken is None:
        return None
    return recovery.reread(source, expected, only_read=only_read)
