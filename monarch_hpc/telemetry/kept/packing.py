"""The chunks of a part as they are stored: the records of a process together, column by column. Pure.

A record shares most of its bytes with the one before: one below the other, these compress to nothing. The helper, which
packs them, has no numpy; `columns.unpack_records` undoes it.
"""

from __future__ import annotations

from dataclasses import replace

from monarch_hpc.telemetry.kept.chunks import RECORDS, Heading, parse, render
from monarch_hpc.telemetry.layout import RECORD_BYTES

__all__ = ["pack", "pack_records"]


def pack(chunks: bytes) -> bytes:
    """Return some chunks with one of records for each process and kind, and these as columns."""
    packed: list[bytes] = []
    records: dict[Heading, list[bytes]] = {}
    for heading, contents, _ in parse(chunks):
        if heading.what in RECORDS and len(contents) % RECORD_BYTES == 0:
            records.setdefault(replace(heading, size=0), []).append(contents)
        else:
            packed.append(render(heading, contents))
    for heading, some in records.items():
        contents = pack_records(b"".join(some))
        packed.append(render(replace(heading, size=len(contents)), contents))
    return b"".join(packed)


def pack_records(records: bytes) -> bytes:
    """Return records as columns: the first bytes of all of them, then the second ones, up to the last."""
    return b"".join(records[place::RECORD_BYTES] for place in range(RECORD_BYTES))
