"""Frames on their way to the ranks, and the answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.calls.endpoint import Endpoint
from monarch_hpc.mesh.calls.watched import WatchedAnswer, fold_watched
from monarch_hpc.tensor.stream.issue_log import LoggedFrame
from monarch_hpc.tensor.stream.records import HALTED
from monarch_hpc.tensor.worker.report import OpFailure

__all__ = ["FrameRead", "Moment", "Sequenced", "failed_seqs", "first_to_differ", "is_direct", "is_reached", "post"]

_MAX_READ_OPS = 2
"""Operations of a read: a sharded tensor is gathered first."""


class Moment(NamedTuple):
    """When something was done.

    Attributes:
        num_issued: number of operations that were issued before.
        at_s: seconds, see `time.monotonic`.
    """

    num_issued: int
    at_s: float

    def precedes(self, other: Moment, within_s: float) -> bool:
        """Whether *other* came next, but for what a read asks the ranks to do, and soon."""
        between = other.num_issued - self.num_issued
        return 0 <= between <= _MAX_READ_OPS and other.at_s - self.at_s < within_s


class Sequenced:
    """A frame that is not acknowledged.

    Args:
        issued: the frame.
        epoch: that of the engine when it was sent.

    Attributes:
        base: sequence number of its first operation.
        sites: the lines that issued its operations.
    """

    __slots__ = ("base", "epoch", "future", "issued", "sites")

    def __init__(self, issued: LoggedFrame, epoch: int) -> None:
        self.issued = issued
        self.base = issued.base
        self.sites = issued.sites
        self.epoch = epoch
        self.future: Future[Any] | None = None


class FrameRead(NamedTuple):
    """A read of values on one rank, which leaves with the frame that is being filled.

    Attributes:
        view: the ranks of the values.
        workers: their workers.
        rank: the rank that is to answer.
        numbers: the values.
        answer: is completed with the answer of that rank to the frame, see `TensorWorker.run`.
    """

    view: object
    workers: ActorMesh[Any]
    rank: int
    numbers: tuple[int, ...]
    answer: WatchedAnswer[Any]


def post(run: Endpoint[..., Any], arguments: tuple[object, ...], read: FrameRead | None) -> Future[list[Any]]:
    """Send a frame; the future gives what each rank reports of it, or why it does not."""
    if read is None:
        own: Future[list[Any]] = run.fold(_reports, *arguments, -1, ())
        return own
    return fold_watched(run, read.answer, _reports, *arguments, read.rank, read.numbers)


def _reports(answers: list[Any]) -> list[Any]:
    return [answer if isinstance(answer, BaseException) else answer[0] for answer in answers]


def is_direct(actors: ActorMesh[Any]) -> bool:
    """Whether each of some actors is called by itself, so that the answer of one waits for no other."""
    return isinstance(actors, ActorMesh) and len(actors._callee.ranks) <= current_runtime().casts.max_direct


def is_reached(actors: ActorMesh[Any]) -> bool:
    """Whether there are channels to all of some actors, so that to send takes no wait."""
    runtime, callee = current_runtime(), actors._callee
    if len(callee.ranks) > runtime.casts.max_direct:
        return True
    channels = (runtime.connections.channels.get(callee.procs[rank].incarnation) for rank in callee.ranks)
    return all(channel is not None and channel.error is None for channel in channels)


def failed_seqs(answer: Any) -> frozenset[int]:
    """The operations that failed on a rank."""
    if isinstance(answer, BaseException):
        return frozenset()
    return frozenset(failure[0] for failure in answer if failure[0] != HALTED)


def first_to_differ(ranks: Sequence[int], reports: Sequence[Sequence[OpFailure]]) -> tuple[int, OpFailure]:
    """The first rank with a failure that not all of them have, and the failure; there must be one."""
    alike = frozenset.intersection(*(frozenset(failure[0] for failure in report) for report in reports))
    return next(
        (rank, failure)
        for rank, report in zip(ranks, reports, strict=True)
        for failure in report
        if failure[0] not in alike and failure[0] != HALTED
    )
