"""Pieces of memory that chunks are sealed in are used again, and few of them are kept."""

from __future__ import annotations

from monarch_hpc.transport.secure.scratch import Scratch


def test_a_piece_that_was_given_back_is_used_again_by_one_at_a_time() -> None:
    scratch = Scratch(100)
    first = scratch.take()
    second = scratch.take()
    assert first.obj is not second.obj and len(first) == len(second) == 100 and not first.readonly
    scratch.give(first)
    assert scratch.take() is first
    assert scratch.take() is not first


def test_few_are_kept() -> None:
    scratch = Scratch(100)
    taken = [scratch.take() for _ in range(50)]
    for piece in taken:
        scratch.give(piece)
    again = [scratch.take() for _ in range(50)]
    assert 0 < sum(any(piece is one for one in taken) for piece in again) < 10
