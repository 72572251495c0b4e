"""Documents for the page: states of procs, calls in their order, and texts of programs without control characters."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

from monarch_hpc.cli.dash.document import (
    chart_document,
    encode,
    failure_document,
    picture_document,
)
from monarch_hpc.cli.dash.saved import saved_page
from monarch_hpc.cli.dash.server import PAGE
from monarch_hpc.telemetry.views.picture import Row
from monarch_hpc.telemetry.views.series import Chart, Curve
from monarch_hpc.telemetry.views.sighting import ProcSeen, Sighting
from monarch_hpc.wire.tables.history import HandledCall
from monarch_hpc.wire.tables.procs import ProcRow

HOSTILE = "</script><script>alert(1)</script>\x1b]0;owned\x07\u202e"


def proc(rank: int, state: str = "ready", pid: int = 0, mesh: int = 1, rows: tuple[Row, ...] = ()) -> ProcSeen:
    one = ProcRow("run", mesh, rank, "n1", pid or 100 + rank, state, "", 1000, 1.5)
    key = "dev", one.host, one.run, one.mesh, one.rank, one.pid
    return ProcSeen(key, key[:2], lambda *_: (one, 0.123, rows), 0)


def row(actor: str, state: str, runs_s: float = 0.0, waits_s: float = 0.0) -> Row:
    endpoint = "step" if state in ("running", "waiting") else ""
    return Row("run", actor, "r0 n1", 100, state, endpoint, 1, "", runs_s, "x" if waits_s else "", waits_s, 0, 0.0, "")


def test_a_cell_shows_the_state_of_its_proc_and_then_of_its_actors() -> None:
    seen = [
        proc(0, rows=(row("a[0]", "idle"), row("b[0]", "running"))),
        proc(1, rows=(row("a[1]", "running"), row("b[1]", "waiting"))),
        proc(2, rows=(row("a[2]", "waiting"), row("b[2]", "failed: ValueError"))),
        proc(3, rows=(row("a[3]", "idle"),)),
        proc(4, "stopped", rows=(row("a[4]", "running"),)),
        proc(5, "ended"),
        proc(0, mesh=-1),
    ]
    found = json.loads(encode(picture_document(Sighting(seen, ["deadlock: a -> b"]), 7.0)))
    assert found["procs"][0][2:] == [-1, 0, "n1", 100, "idle", "", 0.12, 1000]
    states = [one[6] for one in found["procs"][1:]]
    assert states == ["running", "waiting", "failed", "idle", "stopped", "ended"]
    assert (found["t"], found["warnings"], found["more_actors"]) == (7.0, ["deadlock: a -> b"], 0)


def test_failed_actors_are_first_and_then_the_longest_waits() -> None:
    rows = (row("a", "running", 9.0), row("b", "waiting", 1.0, 2.0), row("c", "waiting", 1.0, 5.0), row("d", "failed"))
    found = picture_document(Sighting([proc(0, rows=(*rows, row("e", "idle")))]), 0.0)["actors"]
    assert isinstance(found, list)
    assert [one["actor"] for one in found] == ["d", "c", "b", "a"]


def test_a_proc_that_took_the_place_of_another_is_shown_alone() -> None:
    for some in ([proc(0, "ended", 5), proc(0, pid=6)], [proc(0, pid=6), proc(0, "ended", 5)]):
        found = picture_document(Sighting(some), 0.0)["procs"]
        assert isinstance(found, list)
        assert [one[5] for one in found] == [6]


def test_a_page_of_10_000_actors_stays_small() -> None:
    seen = [proc(rank, rows=(row("a", "running", 1.0),)) for rank in range(10_000)]
    found = picture_document(Sighting(seen), 0.0)
    assert (len(found["actors"]), found["more_actors"]) == (500, 9_500)  # type: ignore[arg-type]
    assert len(encode(found)) < 1_000_000


def test_texts_have_no_control_characters_and_numbers_are_json() -> None:
    found = encode({HOSTILE: [HOSTILE, math.nan, math.inf, 1.5, True, None], "lines": "a\nb"})
    assert b"\x1b" not in found and b"\x07" not in found and b"\n" not in found
    (key, first), lines = json.loads(found).items()
    assert "\x1b" not in key and "\u202e" not in key and r"\x1b]0;owned\x07\u202e" in key
    assert first[1:] == [None, None, 1.5, True, None] and lines == ("lines", "a\nb")


def test_failures_name_the_line_and_the_latest_is_first() -> None:
    calls = [
        HandledCall("run", 1, rank, "n1", 100, float(rank), 0.0, 1, "a", rank, "", "", "step", "", "", 1, False, 0, 0,
                    0, 1.0, "failed", "ValueError", "train.py:12")
        for rank in (1, 2)
    ]  # fmt: skip
    found = failure_document(calls, Sighting([proc(5, "ended"), proc(6)]))
    assert [(one["who"], one["where"]) for one in found] == [
        ("proc 105", "r05 n1"),
        ("a[2].step", "r02 n1"),
        ("a[1].step", "r01 n1"),
    ]
    assert [one["line"] for one in found] == ["", "train.py:12", "train.py:12"]


def test_curves() -> None:
    chart = Chart("loss", True, 1, [Curve("r00", [(1.0, 0.123456789)])], [(1.0, 0.1, 0.2, 0.3)], 2)
    (found,) = chart_document([chart])
    assert (found["lines"], found["band"], found["odd"]) == ([["r00", [[1.0, 0.12346]]]], [[1.0, 0.1, 0.2, 0.3]], 2)


def test_a_saved_page_is_one_file_that_ends_no_element_early() -> None:
    text = saved_page(PAGE, {"picture": {"warnings": [HOSTILE]}})
    assert text.count("<script") == 2 and text.count("</script>") == 2
    assert 'src="' not in text and "alert(1)</script>" not in text and "\\u003c/script>" in text
    assert "default-src 'none'; script-src 'sha256-" in text


def test_the_page_is_small_and_has_no_code_in_its_markup() -> None:
    assert sum(path.stat().st_size for path in PAGE.iterdir()) <= 150_000
    markup = (PAGE / "index.html").read_text()
    assert re.search(r"\son\w+=|style=|<script>", markup) is None
    for name in ("dash.js", "charts.js"):
        text = (PAGE / name).read_text()
        for door in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "http"):
            assert door not in text, f"{name}: {door}"
    assert Path(PAGE / "dash.css").read_text().count("url(") == 0
