"""Folding: equal lines of several ranks are shown once, in order, and soon."""

from __future__ import annotations

import pytest

from monarch_hpc.mesh.output.fold import Fold, OutputLine, Shown, render_ranks


def line(rank: int, text: str, stream: str = "out") -> OutputLine:
    return OutputLine(rank, f"n{rank // 4}", stream, text)


def texts(shown: list[Shown], name: str = "") -> list[str]:
    return [line for one in shown for line in one.render(name).splitlines()]


def test_a_line_of_a_thousand_ranks_is_two_lines() -> None:
    fold = Fold(0.5)
    assert texts(fold.add(line(3, "ready"), 10.0), "w") == ["[w r03 n0] ready"]
    for rank in range(1024):
        if rank != 3:
            assert fold.add(line(rank, "ready"), 10.1) == []
    assert fold.due_s == 10.5
    assert fold.advance(10.4) == []
    assert texts(fold.advance(10.5), "w") == ["[w r00-r02,r04-r1023] ready (×1023 more)"]
    assert fold.due_s is None
    assert texts(fold.add(line(3, "ready"), 10.6)) == ["[r03 n0] ready"]


def test_a_line_that_a_rank_repeats_is_counted() -> None:
    fold = Fold(0.5)
    shown = [one for at in range(1000) for one in fold.add(line(2, "tick"), at / 10_000)]
    assert texts(shown + fold.flush()) == ["[r02 n0] tick", "[r02 n0] tick (×999 more)"]


def test_what_follows_a_held_line_waits_with_it_and_folds_with_others() -> None:
    fold = Fold(0.5)
    shown: list[str] = []
    for rank in range(4):
        for text in ("begin", f"mine {rank}", "end"):
            shown += texts(fold.add(line(rank, text), rank / 100))
    assert shown == ["[r00 n0] begin", "[r00 n0] mine 0", "[r00 n0] end"]
    assert texts(fold.advance(2.0)) == [
        "[r01-r03 n0] begin (×3 more)",
        "[r01 n0] mine 1",
        "[r02 n0] mine 2",
        "[r03 n0] mine 3",
        "[r01-r03 n0] end (×3 more)",
    ]


def test_lines_of_ranks_in_step_fold_each_with_its_own() -> None:
    fold = Fold(0.5)
    shown: list[str] = []
    for rank in range(3):
        for _ in range(2):
            for text in ("a", "b"):
                shown += texts(fold.add(line(rank, text), 0.1))
    assert shown == ["[r00 n0] a", "[r00 n0] b"]
    counted = texts(fold.flush())
    assert [line.partition("] ")[2] for line in counted] == ["a (×3 more)", "b (×3 more)", "a (×2)", "b (×2)"]


def test_a_group_does_not_move_for_ever() -> None:
    fold = Fold(1.0)
    fold.add(line(0, "tick"), 0.0)
    seen: list[str] = []
    for number in range(1, 400):
        now_s = number / 100
        for text in ("own", f"own {number}", "tick"):
            seen += texts(fold.add(line(number, text), now_s))
        if any(line.startswith("[r01") and "tick" in line for line in seen):
            break
    assert now_s <= 2.0


def test_streams_do_not_fold_with_each_other_and_no_window_folds_nothing() -> None:
    fold = Fold(0.5)
    shown = fold.add(line(0, "x"), 0.0) + fold.add(line(1, "x", "err"), 0.0)
    assert texts(shown) == ["[r00 n0] x", "[r01 n0] x"]
    fold = Fold(0.0)
    assert len([one for rank in range(8) for one in fold.add(line(rank, "x"), 0.0)]) == 8


def test_a_record_of_several_lines_is_counted_once() -> None:
    fold = Fold(0.5)
    one = OutputLine(0, "n0", "err", "ERROR lib: bad\nTraceback:\n  x", "worker")
    two = OutputLine(1, "n0", "err", "ERROR lib: bad\nTraceback:\n  x", "worker")
    assert texts(fold.add(one, 0.0)) == [
        "[r00 n0 worker] ERROR lib: bad",
        "[r00 n0 worker] Traceback:",
        "[r00 n0 worker]   x",
    ]
    assert fold.add(two, 0.0) == []
    assert texts(fold.flush())[0] == "[r01 n0 worker] ERROR lib: bad (×1 more)"


def test_memory_is_bounded() -> None:
    fold = Fold(1e9)
    fold.add(line(0, "first"), 0.0)
    fold.add(line(1, "first"), 0.0)
    shown = [one for number in range(10_000) for one in fold.add(line(0, str(number)), 0.0)]
    assert len(shown) >= 10_000 and any(one.more for one in shown)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "r03"),
        ([0, 1], "r00-r01"),
        (range(1024), "r00-r1023"),
        ([7, 0, 2, 4, 5, 6], "r00,r02,r04-r07"),
        (range(0, 20, 2), "r00,r02,r04,+7"),
    ],
)
def test_ranks_are_written_as_ranges(ranks: list[int], text: str) -> None:
    assert render_ranks(ranks) == text
