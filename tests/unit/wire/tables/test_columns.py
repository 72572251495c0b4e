"""Columns: what a process renders is read elsewhere as the same entries; anything else is an error, in time."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.control.questions import Ask
from monarch_hpc.wire.tables.answer import answer
from monarch_hpc.wire.tables.calls import (
    CALLS,
    ActorSeen,
    CallsSeen,
    EndpointCount,
    ProcCalls,
    RunningCall,
    Scene,
    SentCall,
    Wait,
)
from monarch_hpc.wire.tables.columns import Columns, Entries, divide, render_blocks

KINDS = divide(Wait, {"num_calls", "age_s"})
WAITS = [Wait("a", [1 << 62 | 7, 5], 2, "", 1.5), Wait("b", [], 0, "a barrier", 0.0)]


def made(noise: random.Random, rank: int) -> ProcCalls:
    """A process with lists of any length, some of whose values are alike."""
    few = range(noise.randrange(4))
    word = noise.choice(["", "step", "n\u00e4\n", "\ud800", '"', "1 2"])
    scene = Scene(
        word,
        f"{rank:x}",
        [ActorSeen(f"{one:x}", word, one, "ready", "", noise.random()) for one in few],
        [RunningCall("1", word, one, "f", "n1", 1, 0.0) for one in few],
        [Wait("1", [*range(noise.randrange(3))], 9, word, 0.5) for _ in few],
        [SentCall(one, "1", 1, "f", "n1", "2", word, "do", 3.0) for one in few],
        noise.randrange(9),
        [EndpointCount(word, "do", 1, 0, 2.0, 1.0, [0, one], 0.0, 0.0, []) for one in few],
    )
    return ProcCalls("run", 1, rank, "n1", 7 + rank, "ready", "", scene, noise.randrange(1 << 40), noise.random())


@pytest.mark.parametrize("seed", range(30))
def test_processes_are_read_as_they_were(seed: int) -> None:
    noise = random.Random(seed)
    parts = [[made(noise, noise.randrange(99)) for _ in range(noise.randrange(4))] for _ in range(noise.randrange(5))]
    rows = [row for part in parts for row in part]
    seen = CallsSeen.parse([CALLS.render(part, {}) for part in parts])
    assert list(seen) == rows == list(CallsSeen.of(rows))
    seen.check(("actors", "running", "waits", "sent", "endpoints"))
    assert seen[: len(rows)] == rows and len(seen) == len(rows)
    for place, row in enumerate(rows):
        assert seen[place] == row and seen.list_of("sent", place) == row.scene.sent


def test_parts_that_are_not_asked_for_are_empty() -> None:
    rows = [made(random.Random(seed), seed) for seed in range(9)]
    question = Ask(1, CALLS.name, {}, 1.0, parts=["actors", "waits"])
    portion = answer(question, "host n1", {CALLS.name: lambda: rows})
    assert CALLS.read(portion.rows) == [
        replace(row, scene=replace(row.scene, running=[], sent=[], endpoints=[])) for row in rows
    ]
    assert any(row.scene.endpoints for row in rows)


def test_values_that_are_alike_travel_once() -> None:
    changing = {"num_calls", "age_s"}
    blocks = render_blocks(Wait, WAITS, changing)
    assert blocks == (
        [2, ["a", "b"], [f"{1 << 62 | 7} 5", ""], ["", "a barrier"]],
        [2, [2, 0], [1.5, 0.0]],
    )
    assert render_blocks(Wait, WAITS[:1] * 3, changing) == (
        [3, ["a"] * 3, f"{1 << 62 | 7} 5", ""],
        [3, [2] * 3, 1.5],
    )
    none = render_blocks(Wait, [], changing)
    assert none == ([0, [], [], []], [0, [], []])
    both = [Columns(kinds, some, "waits") for kinds, some in zip(KINDS, zip(blocks, none, strict=True), strict=True)]
    entries = Entries(Wait, *both)
    assert entries.make(1, 2) == WAITS[1:] and entries.make(0, 9) == WAITS and len(entries) == 2
    with pytest.raises(FrameError, match="waits are"):
        Entries(Wait, both[0], Columns(KINDS[1], [none[1]], "waits"))


def test_what_is_the_same_in_the_next_answer_is_not_read_again() -> None:
    rows = [[made(random.Random(seed), seed) for seed in range(first, first + 5)] for first in (0, 5)]
    texts = [CALLS.render(some, {}) for some in rows]
    seen = CallsSeen.parse(texts)
    assert CallsSeen.parse(texts, seen).processes.lasting is seen.processes.lasting
    later = [[replace(row, cpu_s=row.cpu_s + 1) for row in some] for some in rows]
    found = CallsSeen.parse([CALLS.render(some, {}) for some in later], seen)
    assert list(found) == [row for some in later for row in some]
    assert found.processes.lasting is seen.processes.lasting
    assert found.processes.changing is not seen.processes.changing
    for others in (later[::-1], later[:1], [later[0], later[1][1:]]):
        found = CallsSeen.parse([CALLS.render(some, {}) for some in others], seen)
        assert list(found) == [row for some in others for row in some]
    assert list(CallsSeen.parse([], seen)) == []


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ([], "not 5 columns"),
        ([1, ["a"], "", 0, ""], "not 5 columns"),
        ({}, "not 5 columns"),
        ([1 << 60, "a", "", 0, "", 0.0], "entries"),  # no short text stands for many entries
        ([2, ["a"], "", 0, "", 0.0], "entries"),
        ([True, ["a"], "", 0, "", 0.0], "entries"),
        ([-1, [], "", 0, "", 0.0], "entries"),
        ([1, ["a"], ["", ""], 0, "", 0.0], "waits.calls: 2 values of 1"),
        ([1, [1], "", 0, "", 0.0], "waits.actor: 1 is not"),
        ([1, ["a"], "x", 0, "", 0.0], "waits.calls: 'x'"),
        ([1, ["a"], "9" * 21, 0, "", 0.0], "waits.calls"),
        ([1, ["a"], [[1]], 0, "", 0.0], "waits.calls"),
        ([1, ["a"], "", True, "", 0.0], "waits.num_calls: True"),
        ([1, ["a"], "", 1 << 65, "", 0.0], "waits.num_calls"),
        ([2, ["a", "b"], "", [0, "0"], "", 0.0], "waits.num_calls: '0'"),
        ([1, ["a"], "", 0, {}, 0.0], "waits.what"),
        ([1, ["a"], "", 0, "", "0"], "waits.age_s"),
        ([1, ["a"], "", 0, "", float("nan")], "waits.age_s"),
        ([1, ["a"], "", 0, "", 10**400], "waits.age_s"),
    ],
)
def test_what_is_no_block_is_an_error(block: Any, words: str) -> None:
    with pytest.raises(FrameError, match=words):
        Columns(divide(Wait, ())[0], [block], "waits").check()


@pytest.mark.parametrize("num", [2, 0, -1, "1", None, [1, 0], [], [["1"]], [2], {}])
def test_each_process_has_the_entries_that_it_says(num: object) -> None:
    blocks = [*map(json.loads, CALLS.render([made(random.Random(1), 0)], {}).split("\n"))]
    place = CallsSeen([blocks]).processes.lasting.place("num_actors")
    assert blocks[0][place] == 1
    blocks[0][place] = num
    with pytest.raises(FrameError, match="actors"):
        CallsSeen([blocks]).check(())
    for text, words in (("[" + "\n" * 11, "not JSON"), ("[],[]" + "\n[]" * 11, "blocks"), ("[[]]", "12 lines")):
        with pytest.raises(FrameError, match=words):
            CallsSeen.parse([text])
