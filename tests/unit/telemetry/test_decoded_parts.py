"""The rows of parts that are kept for the next question: those of the files as they are, within a limit."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import numpy as np
import pyarrow as pa

from monarch_hpc.telemetry.kept import decoded
from monarch_hpc.telemetry.kept.decoded import DecodedParts
from monarch_hpc.telemetry.kept.parts import PartFile
from monarch_hpc.telemetry.kept.reading import ALL_COLUMNS, Columns, DecodedRows
from monarch_hpc.telemetry.kept.records import RecordSource

_NUM_ROWS = 1000
PART = PartFile(Path("0-1.2"), 0, 1, 100, 7, 2)
SOME: Columns = {"handled": {"pid", "rank"}}
SOURCE = RecordSource("feed", 0, 1, 70, "events")
OTHER: Columns = {"handled": {"pid", "mesh"}}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[PartFile, list[str]]]:
    """The parts that are decoded, with the columns of calls, in order."""
    calls: list[tuple[PartFile, list[str]]] = []

    def decode(part: PartFile, names: Collection[str], columns: Columns) -> list[DecodedRows]:
        chosen = sorted(columns.get("handled", ()))
        calls.append((part, chosen))
        array = pa.array([part.number] * _NUM_ROWS, pa.int64())
        rows = DecodedRows("handled", pa.table(dict.fromkeys(chosen, array)), SOURCE, np.arange(7) + 10 * part.number)
        return [rows] if "handled" in names else []

    monkeypatch.setattr(decoded, "decode_rows", decode)
    return calls


def test_a_part_is_decoded_once(calls: list[tuple[PartFile, list[str]]]) -> None:
    parts = DecodedParts()
    for _ in range(2):
        parts.begin()
        ((name, rows),) = parts.rows(PART, ["handled"], SOME)
        assert name == "handled" and sorted(rows.column_names) == ["pid", "rank"]
        assert rows.column("pid").to_pylist() == [1] * _NUM_ROWS
    assert calls == [(PART, ["pid", "rank"])]


def test_columns_that_others_need_are_decoded_with_those_that_are_known(
    calls: list[tuple[PartFile, list[str]]],
) -> None:
    parts = DecodedParts()
    for wanted in (SOME, OTHER, SOME, OTHER):
        parts.begin()
        ((_, rows),) = parts.rows(PART, ["handled"], wanted)
        assert set(rows.column_names) == wanted["handled"]
    assert [columns for _, columns in calls] == [["pid", "rank"], ["mesh", "pid", "rank"]]
    ((_, rows),) = parts.rows(PART, ["handled"], ALL_COLUMNS)
    assert {"run", "t", "endpoint"} < set(rows.column_names)


def test_that_a_part_has_no_rows_is_known_too(calls: list[tuple[PartFile, list[str]]]) -> None:
    parts = DecodedParts()
    for _ in range(3):
        assert [*parts.rows(PART, ["spans"], {"spans": {"pid"}})] == []
    assert calls == [(PART, [])]


def test_another_file_with_the_same_number_is_decoded(calls: list[tuple[PartFile, list[str]]]) -> None:
    parts = DecodedParts()
    for part in (PART, replace(PART, num_bytes=101), replace(PART, changed_ns=8), PART):
        assert len([*parts.rows(part, ["handled"], SOME)]) == 1
    assert len(calls) == 3


def test_rows_that_a_question_uses_are_kept_before_those_of_earlier_ones(
    calls: list[tuple[PartFile, list[str]]],
) -> None:
    one = DecodedParts()
    [*one.rows(PART, ["handled"], SOME)]
    limit, every = 2 * one.num_bytes, [replace(PART, number=number) for number in range(1, 4)]
    calls.clear()
    parts = DecodedParts(limit)
    for _ in range(2):  # the third has no place, and takes none of those that the question needs again
        parts.begin()
        for part in every:
            ((_, rows),) = parts.rows(part, ["handled"], SOME)
            assert rows.column("pid").to_pylist() == [part.number] * _NUM_ROWS
            assert parts.num_bytes <= limit
    assert [part.number for part, _ in calls] == [1, 2, 3, 3]
    parts.begin()
    for _ in range(2):  # of another question
        [*parts.rows(every[2], ["handled"], SOME)]
    assert [part.number for part, _ in calls] == [1, 2, 3, 3, 3]


def test_a_part_that_is_gone_is_gone(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        [*DecodedParts().rows(replace(PART, path=tmp_path / os.fsdecode(PART.path)), ["handled"], SOME)]


def test_numbers_of_records_are_known_as_long_as_a_process_may_have_them(
    calls: list[tuple[PartFile, list[str]]],
) -> None:
    parts, other = DecodedParts(0), replace(PART, number=2)
    for least, expected in ((10, [[10, 16], [20, 26]]), (16, [[10, 16], [20, 26]]), (17, [[20, 26]]), (27, [])):
        parts.begin([PART, other], {SOURCE: least})
        found = [parts.index(part, "handled", SOME).numbers.get(SOURCE, []) for part in (PART, other)]
        assert [[int(some[0]), int(some[-1])] for numbers in found for some in numbers] == expected
    assert [part.number for part, _ in calls] == [1, 2], "what is known of a part needs no rows of it"
    parts.begin([other], {SOURCE: 1})
    parts.begin([PART, other], {SOURCE: 10})
    assert parts.index(PART, "handled", SOME).numbers
    assert [part.number for part, _ in calls] == [1, 2, 1]
