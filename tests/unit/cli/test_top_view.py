"""The screen of `top`: hosts, procs and actors as lines, in any size, whatever names hold."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from monarch_hpc.cli.tables.top_view import TopScreen, clip, lines_of
from monarch_hpc.telemetry.views.picture import Picture, Row
from monarch_hpc.telemetry.views.sighting import Sighting, see
from monarch_hpc.wire.tables.calls import ActorSeen, CallsSeen, ProcCalls, RunningCall, Scene

HOSTILE = "\x1b]0;x\x07<script>\u202e\u4e2d"


def snapshot(num_hosts: int, per_host: int, cpu_s: float = 1.0, before: Sighting | None = None) -> Sighting:
    calls = []
    for rank in range(num_hosts * per_host):
        host = f"n{rank // per_host:02d}"
        actor = ActorSeen("1a0", HOSTILE if rank == 1 else "trainer", rank, "ready", "", 1.0)
        running = [RunningCall("1a0", "step", 5, "f", "login", 65.0, 0.0)] if rank % 2 else []
        scene = Scene("", f"{rank:x}", [actor], running, [], [], 0, [])
        state, cause = ("ended", "it was killed by SIGKILL") if rank == 2 else ("ready", "")
        calls.append(ProcCalls("run", 1, rank, host, 1000 + rank, state, cause, scene, 3 << 20, cpu_s))
    now_s = 3.0 if before is not None else 1.0
    return see({"dev": CallsSeen.of(calls)}, ["deadlock: a -> b -> a"], before or Sighting(), now_s)


def test_a_tree_of_hosts_procs_and_actors() -> None:
    seen = snapshot(2, 2, cpu_s=4.0, before=snapshot(2, 2))
    lines = [line.cells for line in lines_of(seen, set())]
    assert [cells[0] for cells in lines] == ["n00", "  r00 1000", "  r01 1001", "n01", "  r02 1002", "  r03 1003"]
    assert (
        lines[0][:4] == ("n00", "2 procs", "300%", "6 MiB") and "1 idle" in lines[0][4] and "1 running" in lines[0][4]
    )
    assert lines[5][1:7] == ("running", "150%", "3 MiB", "trainer[3].step", "0:01:05", "")[:6]
    assert lines[4][1] == "dead" and lines[4][6] == "it was killed by SIGKILL"
    opened = [line.cells[0] for line in lines_of(seen, {seen.procs[0].key, ("dev", "n01")})]
    assert opened == ["n00", "  r00 1000", "    trainer[0]", "  r01 1001", "n01"]
    assert len(lines_of(seen, set(), everything=True)) == 2 + 4 + 4
    assert [line.cells[0] for line in lines_of(seen, set(), "SIGKILL")] == ["n01", "  r02 1002"]
    assert lines_of(Sighting(), set()) == []
    one = snapshot(1, 1)
    assert lines_of(one, set())[0].cells[1] == "1 proc"
    assert TopScreen().render(one, 200, 60)[0][0].startswith("monarch-hpc top   1 host, 1 proc")
    assert TopScreen().render(seen, 200, 60)[0][0].startswith("monarch-hpc top   2 hosts, 4 procs")


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (41, 7), (10, 3), (1, 1)])
def test_it_fits_into_any_screen_without_control_codes(size: tuple[int, int]) -> None:
    width, height = size
    screen, seen = TopScreen(), snapshot(4, 8)
    for key in ("", "down", "down", "enter", "end", "/", "r", "0", "enter", "escape", "home"):
        screen.press(key, seen)
        lines = screen.render(seen, width, height)
        assert len(lines) <= height
        for text, style in lines:
            assert text.isprintable() and style in ("", "head", "bad", "selected")
            assert len(text) <= width
    screen.show([HOSTILE, *map(str, range(100))])
    assert all(text.isprintable() for text, _ in screen.render(seen, width, height))


def test_keys() -> None:
    screen, seen = TopScreen(), snapshot(2, 8)
    screen.render(seen, 80, 12)
    assert screen.press("s", seen) == ("", None)  # a host has no stack
    screen.press("down", seen)
    assert screen.press("s", seen) == ("stack", seen.procs[0]) and screen.press("l", seen) == ("logs", seen.procs[0])
    screen.press("enter", seen)
    assert "trainer[0]" in shown(screen, seen)
    screen.press("end", seen)
    assert "r15" in shown(screen, seen) and "r00" not in shown(screen, seen)
    screen.press("pageup", seen)
    screen.press("k", seen)
    for key in "/sq":
        assert screen.press(key, seen) == ("", None)
    screen.press("backspace", seen)
    assert screen.wanted == "s" and "/s_" in shown(screen, seen)
    screen.press("enter", seen)
    screen.press("escape", seen)
    assert screen.wanted == ""
    screen.show(map(str, range(1000, 1100)))
    assert "1000" in shown(screen, seen)
    screen.press("end", seen)
    assert "1099" in shown(screen, seen)
    for key in ("up", "down", "pagedown", "home", "x"):
        screen.press(key, seen)
    assert screen.press("q", seen) == ("", None) and screen.page is None
    assert screen.press("q", seen) == ("quit", None)
    screen.selected = ("gone",)
    assert "n00" in shown(screen, seen)
    assert TopScreen().press("s", Sighting()) == ("", None)
    assert "asking the hosts" in shown(TopScreen(), Sighting())


def shown(screen: TopScreen, seen: Sighting) -> str:
    return "\n".join(text for text, _ in screen.render(seen, 80, 12))


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("abc", 5, "abc  "),
        ("abc", 2, "ab"),
        ("\u4e2d\u4e2d", 3, "\u4e2d "),
        ("a\x1b", 9, "a\\x1b    "),
        ("e\u0301x", 2, "e\u0301x"),
    ],
)
def test_texts_are_cut_and_filled(text: str, width: int, expected: str) -> None:
    assert clip(text, width) == expected


def test_only_procs_that_are_shown_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    rows_of = Picture.rows_of

    def count(picture: Picture, place: int) -> list[Row]:
        looked_at.append(place)
        return rows_of(picture, place)

    monkeypatch.setattr(Picture, "rows_of", count)
    screen, seen = TopScreen(), snapshot(64, 8)
    assert not looked_at
    for _ in range(2):
        screen.render(seen, 80, 20)  # 17 lines: two hosts with their procs, or a part of them
        assert sorted(looked_at) == [*range(16)]
    screen.press("/", seen)
    screen.press("9", seen)
    screen.render(seen, 80, 20)
    assert len(looked_at) == 512  # each of them once


def test_a_large_mesh_costs_little() -> None:
    screen, seen = TopScreen(), snapshot(64, 8)
    costs = []
    for _ in range(5):
        began_s = time.process_time()
        screen.render(replace(seen), 200, 60)
        costs.append(time.process_time() - began_s)
    assert min(costs) < 0.03
