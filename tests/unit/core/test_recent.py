"""Mappings that keep only their latest entries."""

from __future__ import annotations

from monarch_hpc.core.recent import Recent


def test_the_oldest_entry_goes_first() -> None:
    recent: Recent[int, str] = Recent(3)
    for number in range(10):
        recent[number] = str(number)
    assert list(recent) == [7, 8, 9] and len(recent) == 3
    assert (recent.get(6), recent.get(9), 6 in recent, 9 in recent) == (None, "9", False, True)


def test_an_entry_that_is_written_again_keeps_its_place() -> None:
    recent: Recent[str, int] = Recent(2)
    recent["a"], recent["b"] = 1, 2
    recent["a"] = 3
    assert recent.setdefault("a", 4) == 3
    recent["c"] = 5
    assert list(recent) == ["b", "c"]
    recent.forget("b")
    recent.forget("b")
    assert list(recent) == ["c"] and recent.setdefault("d", 6) == 6
