"""The log of a mesh that heals by itself, and what is issued again."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.stream.issue_log import IssueLog, LoggedFrame
from monarch_hpc.tensor.stream.records import ProgramSpec

_PROGRAM = ProgramSpec(b"", (), (), 0, 0, 0, 3, (), (), True, True)
_VIEW: Any = object()
_SITE: Any = None


def _frame(base: int, *ints: int, num: int, objects: tuple[Any, ...] = ()) -> LoggedFrame:
    return LoggedFrame(_VIEW, base, list(ints), list(objects), [_SITE] * num)


def _log(max_bytes: int = 10_000) -> IssueLog:
    log = IssueLog(max_bytes, {16: _PROGRAM}.__getitem__)
    log.note_commit(0, 0, [])
    return log


def test_what_followed_a_version_begins_within_a_frame() -> None:
    log = _log()
    free = records.FREE, 1, 7
    log.add(_frame(0, records.NO_GRAD, 1, *free, records.COMMIT, 1, 9, *free, records.NO_GRAD, 2, num=3))
    log.note_commit(1, 2, [5, 4])
    log.add(_frame(3, records.NO_GRAD, 3, num=1))
    assert [(one.base, one.ints, len(one.sites)) for one in log.since(1)] == [
        (2, [*free, records.NO_GRAD, 2], 1),
        (3, [records.NO_GRAD, 3], 1),
    ]
    assert (log.graded_at(1), log.graded_at(0)) == ([4, 5], [])
    assert log.obstacle(1, None) == ""
    assert log.since(0)[0].base == 0


def test_what_all_ranks_have_done_is_forgotten_and_a_new_beginning_forgets_all() -> None:
    log = _log()
    for version in range(1, 4):
        log.add(_frame(version - 1, records.COMMIT, version, 9, num=1))
        log.note_commit(version, version, [])
    log.note_done(2)
    assert "was not made while it was kept" in log.obstacle(1, None)
    assert [one.base for one in log.since(2)] == [2]
    log.restart(2, 3, [])
    assert log.since(2) == [] and log.obstacle(3, None)


def test_what_must_not_be_done_twice_is_named() -> None:
    log = _log()
    assert "captured step" in log.obstacle(0, _frame(0, 16, 0, num=3))
    assert "actor" in log.obstacle(0, _frame(0, records.LEND, 1, 2, num=1))
    log.note_once(1, "a checkpoint was saved")
    assert log.obstacle(0, None) == "a checkpoint was saved since version 0"
    log.note_commit(1, 2, [])
    assert log.obstacle(1, None) == ""


def test_more_than_the_limit_is_not_issued_again() -> None:
    log = _log(max_bytes=100)
    log.add(_frame(0, records.PUT, 0, 5, num=1, objects=(torch.zeros(100),)))
    assert "tensor.reissue_bytes" in log.obstacle(0, None)
    log.note_commit(1, 1, [])
    log.add(_frame(1, records.NO_GRAD, 1, num=1))
    assert log.obstacle(1, None) == ""
