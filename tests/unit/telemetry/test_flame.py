"""Flame graphs: py-spy's output, equal stacks added up, one rank against others, names that are hostile."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from monarch_hpc.cli.tables.profile import parts_of, rounds_of
from monarch_hpc.telemetry.views.flame import add_up, flame_page, folded_lines, parse_profile
from monarch_hpc.wire.tables.procs import ProcRow

HOSTILE = "</title></svg><script>alert(1)</script>\x1b]0;owned\x07"


def proc(rank: int = 0, host: str = "n1") -> ProcRow:
    return ProcRow("run", 1, rank, host, 100 + rank, "ready", "", 0, 0.0)


def test_what_py_spy_writes() -> None:
    text = "main (a.py:1);step (a.py:9) 3\nmain (a.py:1) 1\nmain (a.py:1);step (a.py:9) 2\n"
    rows = parse_profile(text, proc(3), 5, idle=False)
    assert [(row.rank, row.stack, row.samples, row.problem) for row in rows] == [
        (3, "main (a.py:1);step (a.py:9)", 5, ""),
        (3, "main (a.py:1)", 1, ""),
    ]
    (row,) = parse_profile("", proc(), 5, idle=False)
    assert "none of its threads computed" in row.problem and row.samples == 0
    with pytest.raises(ValueError):
        parse_profile("no number\n", proc(), 5, idle=False)


def test_what_one_proc_adds_is_limited() -> None:
    text = "".join(f"{';'.join(['f' * 999] * 999)}{number} 1\n" for number in range(3))
    (row,) = parse_profile(text, proc(), 1, idle=False)
    assert row.samples == 3 and len(row.stack) == 128 * 201 - 1
    assert len(parse_profile("".join(f"f{number} 1\n" for number in range(5_000)), proc(), 1, idle=False)) == 1_000


def test_equal_stacks_of_ranks_are_one_and_the_file_keeps_the_ranks() -> None:
    rows = [*parse_profile("a;b 2\n", proc(0), 1, idle=False), *parse_profile("a;b 3\n", proc(1), 1, idle=False)]
    rows += parse_profile("", proc(2), 1, idle=False)
    assert add_up(rows) == {"a;b": 5}
    assert folded_lines(rows) == ["r00;a;b 2", "r01;a;b 3"]


def drawn(page: str) -> dict[str, tuple[float, float, float, str]]:
    svg = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    found = {}
    for group in svg:
        rect = group[1].attrib
        place = float(rect["x"]), float(rect["y"]), float(rect["width"])
        found[(group[0].text or "").partition(":")[0]] = (*place, rect["fill"])
    return found


def test_frames_are_as_wide_as_their_part() -> None:
    boxes = drawn(flame_page("all", {"a;b": 60, "a;c": 20, "d": 20}))
    assert {name: box[:3] for name, box in boxes.items()} == {
        "a": (0, 0, 960),
        "b": (0, 18, 720),
        "c": (720, 18, 240),
        "d": (960, 0, 240),
    }


def test_one_against_the_others_is_red_where_it_takes_more_and_blue_where_less() -> None:
    page = flame_page("one", {"a;b": 80, "a;c": 20}, {"a;b": 100, "a;c": 900})
    boxes = drawn(page)
    assert boxes["b"][3].startswith("hsl(8 ") and boxes["c"][3].startswith("hsl(215 ")
    assert "b: 80.0%, 80 samples; others 10.0%" in page


def test_names_are_never_markup() -> None:
    page = flame_page(HOSTILE, {HOSTILE: 10, "x": 1})
    assert "<script" not in page and "\x1b" not in page and page.count("</svg>") == 1
    assert re.search(r"&lt;script&gt;alert\(1\).*\\x1b", page)
    assert "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")


def test_rounds_have_two_procs_of_each_host() -> None:
    procs = [proc(rank, f"n{rank // 3}") for rank in range(7)]
    assert [[one.rank for one in some] for some in rounds_of(procs)] == [[0, 1, 3, 4, 6], [2, 5]]
    assert (rounds_of([]), parts_of(3), parts_of(5), parts_of(12)) == ([], [3], [5], [5, 5, 2])
