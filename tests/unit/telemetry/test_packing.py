"""Chunks as parts store them: no byte of a record is lost, and they compress well."""

from __future__ import annotations

import json
import random
import zlib

import pytest

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.kept.chunks import BEGIN, EVENTS, METRICS, NO_PROCESS, ROWS, Heading, parse, render
from monarch_hpc.telemetry.kept.packing import pack, pack_records
from monarch_hpc.telemetry.layout import RECORD_BYTES, RecordKind

_NUM = 2_000


def _chunk(what: str, contents: bytes, rank: int = 0, offset_ns: int = 0) -> bytes:
    return render(Heading(what, len(contents), "n1", "feed", 1, rank, 70 + rank, offset_ns, 1.0, "", 0), contents)


def _calls(seed: int) -> bytes:
    """Calls of a few endpoints by some callers, ten thousand a second; their sizes are those of the endpoint."""
    random.seed(seed)
    t, records = 10**14, []
    for number in range(1, _NUM + 1):
        t += int(random.expovariate(1e-5))
        endpoint = random.randrange(4)
        queued, answer = int(random.expovariate(0.05)), 60 + 40 * endpoint + random.randrange(4)
        head = t, RecordKind.HANDLED, 0, endpoint // 2, endpoint, random.randrange(8)
        took_ns = int(random.lognormvariate(11, 1))
        records.append(layout.RECORD.pack(*head, number // 8, 60, took_ns, queued | answer << 32, number))
    return b"".join(records)


def test_records_are_stored_by_byte_and_read_as_they_were() -> None:
    pytest.importorskip("numpy")
    pytest.importorskip("pyarrow")
    from monarch_hpc.telemetry.kept.records import unpack_records

    for num in (0, 1, 2, 1000):
        records = random.Random(num).randbytes(num * RECORD_BYTES)
        packed = pack_records(records)
        assert packed[:num] == records[::RECORD_BYTES] and len(packed) == len(records)
        assert unpack_records(packed) == records


def test_the_records_of_a_process_become_one_chunk_and_others_stay() -> None:
    first, second, other = (bytes([value]) * RECORD_BYTES for value in (1, 2, 3))
    begin = render(Heading(BEGIN, 2, *NO_PROCESS, "", 4), b"{}")
    rows = render(Heading(ROWS, 2, *NO_PROCESS, "metrics", 0), json.dumps([]).encode())
    chunks = begin + _chunk(EVENTS, first) + rows + _chunk(EVENTS, other, rank=1) + _chunk(EVENTS, second)
    corrected = _chunk(EVENTS, first, offset_ns=1) + _chunk(METRICS, first)
    expected = [
        *((BEGIN, 0, 0, b"{}"), (ROWS, 0, 0, b"[]"), (EVENTS, 0, 0, pack_records(first + second))),
        *((EVENTS, 1, 0, other), (EVENTS, 0, 1, first), (METRICS, 0, 0, first)),
    ]
    cut_off = _chunk(METRICS, second)[:-1]
    packed = parse(pack(chunks + corrected + cut_off))
    found = [(head.what, head.rank, head.offset_ns, body) for head, body, _ in packed]
    assert found == expected


def test_packed_calls_compress_to_half_of_what_others_do() -> None:
    chunks = b"".join(_chunk(EVENTS, _calls(rank), rank=rank) for rank in range(4))
    assert len(zlib.compress(pack(chunks), 1)) < 0.5 * len(zlib.compress(chunks, 1))
