"""Lists of pieces of memory: rendered, parsed, refused if malformed, and distributed over few frames."""

from __future__ import annotations

import os

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.memory.framed.lists import (
    LIST_BYTES,
    MAX_PIECES,
    ListedPiece,
    ListProblem,
    pack_list,
    pack_problem,
    parse_list,
    parse_problem,
    plan_batches,
)
from monarch_hpc.transport.memory.key import ID_BYTES
from monarch_hpc.transport.memory.moves import Move

ONE, OTHER = b"1" * ID_BYTES, b"2" * ID_BYTES
GOOD = pack_list([ListedPiece(ONE, 0, 4), ListedPiece(OTHER, 7, 0), ListedPiece(ONE, 2**40, 5)])


def test_a_list_names_each_memory_once_and_is_read_as_it_was() -> None:
    assert parse_list(GOOD) == [ListedPiece(ONE, 0, 4), ListedPiece(OTHER, 7, 0), ListedPiece(ONE, 2**40, 5)]
    assert GOOD.count(ONE) == 1


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "0 pieces"),
        (bytes(8), "0 pieces"),
        (GOOD[:-1], "in 99 bytes"),
        (GOOD + b"x", "in 101 bytes"),
        (GOOD[:40] + b"\2" + GOOD[41:], "memory 2 in a list of 2 memories"),
        (b"\4" + GOOD[1:], "3 pieces of 4 memories"),
        (b"\1\0\0\0\xff\xff\xff\xff" + GOOD[8:], f"at most {MAX_PIECES}"),
        (pack_list([ListedPiece(ONE, 0, LIST_BYTES), ListedPiece(ONE, 0, 1)]), f"{LIST_BYTES + 1} bytes"),
        (pack_list([ListedPiece(ONE, 0, 2**64 - 1), ListedPiece(ONE, 0, 2)]), "at most"),
    ],
)
def test_what_is_not_a_list_is_refused(body: bytes, problem: str) -> None:
    with pytest.raises(FrameError, match=problem):
        parse_list(body)


def test_a_problem_names_its_piece() -> None:
    for problem in (ListProblem(7, "no"), ListProblem(None, "no")):
        assert parse_problem(pack_problem(problem)) == problem
    assert parse_problem(b"x") == ListProblem(None, "")


def test_transfers_are_distributed_over_few_frames_reads_and_writes_apart() -> None:
    buffers = [bytearray(os.urandom(size)) for size in (10, 20, 0, 30, 40)]
    moves = [Move(ONE, 100 * at, memoryview(one), at == 1) for at, one in enumerate(buffers)]
    batches = list(plan_batches(enumerate(moves), 3, 10**6))
    assert [(batch.write, list(batch.numbers)) for batch in batches] == [(False, [0, 2, 3]), (False, [4]), (True, [1])]
    assert parse_list(batches[0].body) == [ListedPiece(ONE, 0, 10), ListedPiece(ONE, 200, 0), ListedPiece(ONE, 300, 30)]
    assert batches[2].gather() == buffers[1]
    assert not batches[0].scatter(bytes(39)), "too few bytes"
    data = os.urandom(40)
    assert batches[0].scatter(data)
    assert bytes(buffers[0] + buffers[3]) == data
    # Of 140 bytes with 36 for each piece of the table there is room for two pieces of 30, not for three.
    small = [(number, Move(ONE, 0, memoryview(bytearray(30)), False)) for number in range(5)]
    assert [len(batch.numbers) for batch in plan_batches(small, 100, 140)] == [2, 2, 1]


def test_local_memory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        list(plan_batches([(0, Move(ONE, 0, memoryview(b"abc"), False))], 10, 1000))
