"""Operations that failed on another rank, compared with what this one executes."""

from __future__ import annotations

import pytest

from monarch_hpc.tensor.worker import divergence
from monarch_hpc.tensor.worker.divergence import Divergence, FailedFrame
from monarch_hpc.tensor.worker.report import OpFailure

CAUSE = "rank 1 failed in forward, and others did not: ValueError: odd"


def failure(seq: int) -> OpFailure:
    return seq, "forward", "ValueError", "odd", "", b""


class Rank:
    """A rank in epoch 3 that executes a frame which begins at 10."""

    def __init__(self, reached: int, *failed: int) -> None:
        self.ended: list[tuple[str, int]] = []
        self.looks = 0
        failures = [failure(seq) for seq in failed]
        self.divergence = Divergence(lambda: failures, lambda: reached, self.is_over, self.end)
        self.divergence.begin(10)

    def is_over(self, epoch: int) -> bool:
        """End the comparison at the third look, when nothing has differed."""
        self.looks += 1
        return epoch != 3 or self.looks > 3

    def end(self, cause: str, epoch: int) -> None:
        self.ended.append((cause, epoch))

    def compare(self, *seqs: int, epoch: int = 3) -> list[tuple[str, int]]:
        """Compare with a frame of another rank on which these operations failed."""
        self.divergence._compare(FailedFrame.of(1, epoch, 10, [failure(seq) for seq in seqs]))
        return self.ended


@pytest.mark.parametrize(
    ("reached", "failed", "seqs", "differs"),
    [
        (12, (), (11,), True),
        (12, (11,), (11,), False),
        (12, (11,), (10, 11), True),
        (11, (), (11,), False),
        (10, (), (11,), False),
    ],
    ids=["past it", "failed, too", "in one of two", "in it", "before it"],
)
def test_an_operation_that_failed_there_and_not_here_ends_all_waits(
    reached: int, failed: tuple[int, ...], seqs: tuple[int, ...], differs: bool
) -> None:
    assert Rank(reached, *failed).compare(*seqs) == ([(CAUSE, 3)] if differs else [])


def test_in_the_operation_that_failed_there_a_rank_has_some_time_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "_SETTLE_S", -1.0)
    assert Rank(11).compare(11) == [(CAUSE, 3)]


def test_what_has_ended_is_not_compared() -> None:
    rank = Rank(12)
    assert rank.compare(11, epoch=2) == []
    rank.divergence.end(10)
    assert rank.compare(11) == []
