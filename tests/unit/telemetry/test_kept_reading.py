"""The rows of parts: as many tables as processes, not as chunks, and each row once."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import EVENTS, NAMES, SENDS, Heading, render
from monarch_hpc.telemetry.kept.parts import list_parts, write_part
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.wire.tables.pieces import QueryPiece

pytest.importorskip("datafusion")
pytest.importorskip("pyarrow")

import pyarrow.parquet as pq

from monarch_hpc.telemetry.kept.compact import compact
from monarch_hpc.telemetry.kept.reading import decode_part, find_kept
from monarch_hpc.telemetry.sql.context import KeptRows, RowSet, results_of
from monarch_hpc.telemetry.sql.planning import Planner

_NUM_CHUNKS = 5
_NUM_IN_CHUNK = 4
_NUM_PARTS = 3
_RANKS = (0, 1)


def _records(kind: int, first: int, rank: int) -> bytes:
    """Calls, each of which took its number in microseconds."""
    numbers = range(first, first + _NUM_IN_CHUNK)
    return b"".join(layout.RECORD.pack(1000 * one, kind, 0, 0, 1, 0, one, rank, 1000 * one, 0, one) for one in numbers)


def _part(number: int) -> bytes:
    entry = json.dumps(["endpoint", "trainer", "step"]).encode()
    names = struct.pack("<QI", 12 + len(entry), len(entry)) + entry
    chunks = []
    for chunk in range(_NUM_CHUNKS):
        first = 1 + (number * _NUM_CHUNKS + chunk) * _NUM_IN_CHUNK
        offset_ns = 10**15 * (chunk == 0)  # the clock was compared again after the first one
        for rank in _RANKS:
            for what, kind in ((EVENTS, RecordKind.HANDLED), (SENDS, RecordKind.SENT)):
                records = _records(kind, first, rank)
                heading = Heading(what, len(records), "n1", "feed", 1, rank, 70 + rank, offset_ns, 1.0, "", 0)
                chunks.append(render(heading, records))
    for rank in _RANKS:
        contents = b"\0" * layout.HEADER.size + (0).to_bytes(4, "little") + names
        chunks.append(render(Heading(NAMES, len(contents), "n1", "feed", 1, rank, 70 + rank, 0, 1.0, "", 0), contents))
    return b"".join(chunks)


@pytest.fixture(scope="module", autouse=True)
def planner() -> Planner:
    """The engine keeps threads and descriptors of its own."""
    planner = Planner()
    planner.plan("SELECT 1")
    return planner


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of an allocation that has kept parts of one host."""
    for number in range(_NUM_PARTS):
        write_part(tmp_path, 0, number + 1, _part(number))
    return tmp_path


def test_the_records_of_a_process_come_in_one_table_of_each_part(directory: Path) -> None:
    (first, *others) = find_kept(directory).parts
    assert len(others) == _NUM_PARTS - 1
    found = [(name, len(rows)) for name, rows in decode_part(first, ["handled", "sends"])]
    # Twice for each process, because its clock was corrected in between.
    one, rest = _NUM_IN_CHUNK, _NUM_IN_CHUNK * (_NUM_CHUNKS - 1)
    assert sorted(found) == sorted((name, num) for name in ("handled", "sends") for num in 2 * [one, rest])


def test_the_engine_has_one_frame_of_all_parts_and_each_row_once(directory: Path) -> None:
    total = _NUM_PARTS * _NUM_CHUNKS * _NUM_IN_CHUNK
    rows = find_kept(directory).rows(["handled", "spans"])
    assert rows.keys() == {"handled"} and len(rows["handled"]) == len(_RANKS) * total
    aggregates = "count(*) AS num, sum(ran_us) AS us, count(DISTINCT record) AS apart"
    sql = f"SELECT rank, endpoint, {aggregates} FROM handled GROUP BY 1, 2 ORDER BY 1"
    kept = KeptRows(directory, ranks=[0], hosts={0: "n1"})
    expected = [
        {"rank": rank, "endpoint": "step", "num": total, "us": total * (total + 1) / 2, "apart": total}
        for rank in _RANKS
    ]
    for live in ({}, {"handled": rows["handled"].slice(3, 17)}):  # those that are in memory, too, count once
        (answer,) = results_of([QueryPiece(["handled"], sql)], RowSet(live, [kept]), [])
        assert answer.to_pylist() == expected


def test_a_part_of_the_first_version_has_the_same_rows(directory: Path) -> None:
    tables = ["handled", "sends"]
    (first, *_) = find_kept(directory).parts
    path = first.path.with_name("0-1")
    path.write_bytes(zlib.compress(_part(0)))
    (old,) = (part for part in list_parts(directory) if part.path == path)
    expected = {(name, str(rows.to_pydict())) for name, rows in decode_part(first, tables)}
    assert {(name, str(rows.to_pydict())) for name, rows in decode_part(old, tables)} == expected
    assert expected


def test_files_of_other_versions_are_named_and_stay(directory: Path) -> None:
    compact(directory, 0)
    (table,) = find_kept(directory).files["handled"]
    rows = pq.read_table(table)
    older, later = table.with_name("0-7.parquet"), table.with_name("0-8.parquet")
    pq.write_table(rows.drop_columns(["queued_us"]), older)
    pq.write_table(rows.append_column("more", rows.column("pid")), later)
    write_part(directory, 0, 9, _part(9))
    (part,) = list_parts(directory)
    later_part = part.path.rename(part.path.with_name("0-9.3"))
    kept = find_kept(directory)
    assert kept.unreadable == [later_part, older]
    assert kept.parts == [] and kept.files["handled"].keys() == {table, later}
    compact(directory, 0)
    assert later_part.exists()
