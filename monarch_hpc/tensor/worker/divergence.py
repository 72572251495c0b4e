"""Notices that an operation on sharded tensors failed on another rank alone, whose part in a collective never comes.

A rank tells the next one of a frame in which operations failed. If some ranks failed in them and others did not, there
is one that did not behind one that did, and it ends the wait of all; ranks that all failed send one message each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import NamedTuple

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.tensor.worker.report import OpFailure

__all__ = ["Divergence", "FailedFrame"]

_LOOK_S = 0.05

_SETTLE_S = 2.0
"""Time for which this rank may still be in the operation in which the other one failed, and fail in it, too: what both
took part in before ends for both at about the same time."""


class FailedFrame(NamedTuple):
    """A frame that a rank has executed.

    Attributes:
        epoch: of the mesh.
        base: sequence number of its first operation.
        seqs: those of the operations that failed.
        cause: the first failure, in words.
    """

    epoch: int
    base: int
    seqs: tuple[int, ...]
    cause: str

    @classmethod
    def of(cls, rank: int, epoch: int, base: int, failures: Sequence[OpFailure]) -> FailedFrame:
        """The frame of a rank on which operations failed."""
        _, name, type_name, text, *_ = failures[0]
        cause = f"rank {rank} failed in {name}, and others did not: {type_name}: {text}"
        return cls(epoch, base, tuple(failure[0] for failure in failures), cause)


class Divergence:
    """What a rank executes, beside what it is told of another one.

    Args:
        failures: the operations of the frame under way that have failed here.
        reached: sequence number of the operation under way.
        is_over: whether an epoch has ended.
        abort: ends the collectives of an epoch; takes the cause and the epoch.
    """

    def __init__(
        self,
        failures: Callable[[], Sequence[OpFailure]],
        reached: Callable[[], int],
        is_over: Callable[[int], bool],
        abort: Callable[[str, int], None],
    ) -> None:
        self._failures = failures
        self._reached = reached
        self._is_over = is_over
        self._abort = abort
        self._base = self._done = -1

    def begin(self, base: int) -> None:
        """Note that a frame on sharded tensors begins."""
        self._base = base

    def end(self, base: int) -> None:
        """Note that it has ended: the program compares what the ranks report."""
        self._base, self._done = -1, base

    def note(self, frame: FailedFrame) -> None:
        """Compare another rank's frame with this rank's until that ends; from any thread."""
        Thread(lambda: self._compare(frame))

    def _compare(self, frame: FailedFrame) -> None:
        begun_s = monotonic()
        while self._done < frame.base and not self._is_over(frame.epoch):
            if self._base == frame.base and self._differs(frame, late=monotonic() - begun_s > _SETTLE_S):
                self._abort(frame.cause, frame.epoch)
                return
            sleep(_LOOK_S)

    def _differs(self, frame: FailedFrame, *, late: bool) -> bool:
        reached = self._reached()  # first: an operation that fails is noted before the next one is reached
        own = {failure[0] for failure in self._failures()}
        return any(seq < reached + late for seq in frame.seqs if seq not in own)
