"""Files of tables: small even where all calls differ; numbers are exact, and durations as exact as is promised."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("datafusion")
pytest.importorskip("pyarrow")

import datafusion
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.columns import KeptProcess, columns_of
from monarch_hpc.telemetry.kept.compact import render
from monarch_hpc.telemetry.kept.records import as_records
from monarch_hpc.telemetry.layout import RecordKind

_NUM_PROCS, _NUM_CALLS = 4, 5000


def calls(noise: Any, rank: int) -> Any:
    """Calls of one process whose sizes and times follow wide distributions."""
    num = _NUM_CALLS
    t = 10**15 + np.cumsum(noise.exponential(2e5, num)).astype(int)
    callers, sizes = noise.integers(6, 14, num), noise.choice([86, 200, 4096], num) + noise.integers(0, 300, num)
    ran_ns, queued_us = (noise.lognormal(mean, 1.2, num).astype(int) for mean in (12, 3.5))
    columns = (one.tolist() for one in (t, callers, sizes, ran_ns, queued_us))
    records = b"".join(
        layout.RECORD.pack(at, RecordKind.HANDLED, 0, 1, 1, caller, 3 * place, size, ran, queued | size << 32, place)
        for place, (at, caller, size, ran, queued) in enumerate(zip(*columns, strict=True), 1)
    )
    names = [(), ("endpoint", "actor", "step"), *((),) * 4, *(("proc", f"{one:x}", f"n{one}") for one in range(8))]
    process = KeptProcess("feed", 1, rank, "n1", 70 + rank, f"{rank}", 5, 12.3, names, {1: ("actor", rank)}, {1: 9})
    return columns_of("handled", process, as_records(records))


@pytest.fixture(scope="module", autouse=True)
def engine() -> Any:
    """It keeps threads and descriptors of its own."""
    context = datafusion.SessionContext()
    context.sql("SELECT 1").collect()
    return context


@pytest.fixture(scope="module")
def table() -> Any:
    noise = np.random.default_rng(1)
    return pa.concat_tables([calls(noise, rank) for rank in range(_NUM_PROCS)])


@pytest.fixture(scope="module")
def file(table: Any) -> bytes:
    return render(table, [(0, 1)])


def test_a_call_takes_less_than_eight_bytes(file: bytes) -> None:
    assert len(file) / (_NUM_PROCS * _NUM_CALLS) < 8
    group = pq.read_metadata(io.BytesIO(file)).row_group(0)
    columns = {group.column(place).path_in_schema: group.column(place) for place in range(group.num_columns)}
    for name, encoding in (
        ("record", "DELTA_BINARY_PACKED"),
        ("t", "DELTA_BINARY_PACKED"),
        ("ran_us", "BYTE_STREAM_SPLIT"),
        ("bytes", "RLE_DICTIONARY"),
        ("host", "RLE_DICTIONARY"),
    ):
        assert encoding in columns[name].encodings


def test_only_durations_are_rounded(table: Any, file: bytes) -> None:
    read = pq.read_table(io.BytesIO(file))
    assert read.drop_columns(["ran_us"]).equals(table.drop_columns(["ran_us"]))
    given, kept = (one.column("ran_us").to_numpy() for one in (table, read))
    assert np.all(np.abs(kept - given) * 2000 <= given)
    some = pa.array([0.0, 1.0, 999.0, 2047.0, 2049.0, 0.001, 1e12, -1.0])
    rows = pa.table({"pid": pa.array(range(len(some))), "took_us": some})
    found = pq.read_table(io.BytesIO(render(rows, []))).column("took_us").to_pylist()
    assert found[:4] == [0.0, 1.0, 999.0, 2047.0] and found[7] == -1.0  # a whole number of eleven bits is exact
    assert found[4] in (2048.0, 2050.0)
    assert found[5:7] == [pytest.approx(0.001, rel=5e-4), pytest.approx(1e12, rel=5e-4)]


def test_the_engine_reads_the_same(engine: Any, table: Any, file: bytes, tmp_path: Path) -> None:
    path = tmp_path / "0-1.parquet"
    path.write_bytes(file)
    engine.register_parquet("handled", str(path))
    found = pa.Table.from_batches(engine.sql("SELECT * FROM handled ORDER BY pid, record").collect())
    assert found.select(["bytes", "queued_us", "call"]).equals(table.select(["bytes", "queued_us", "call"]))
    assert found.column("ran_us").equals(pq.read_table(path).column("ran_us"))


def test_an_empty_table_is_a_file() -> None:
    empty = pa.table({"t": pa.array([], pa.timestamp("us", tz="UTC")), "took_us": pa.array([], pa.float64())})
    assert pq.read_table(io.BytesIO(render(empty, []))).num_rows == 0
