"""Results of pieces as text for messages: Arrow's format, compressed. The door to its streams on both sides."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from monarch_hpc.core.errors import FrameError

__all__ = ["fit", "pack", "read_stream", "unpack", "write_stream"]

_SMALL_BYTES = 1 << 16
"""Results that are compressed thoroughly: those of groups, which are small and many."""


def write_stream(table: Any) -> bytes:
    """Return a table in Arrow's stream format."""
    written = pa.BufferOutputStream()
    with pa.ipc.new_stream(written, table.schema) as stream:
        stream.write_table(table)
    return bytes(written.getvalue())


def read_stream(data: bytes) -> Any:
    """Return the table that `write_stream` has written."""
    return pa.ipc.open_stream(data).read_all()


def pack(results: Sequence[Any]) -> str:
    """Return the results of the pieces of one question as text."""
    streams = [write_stream(result) for result in results]
    sizes = b"".join(len(stream).to_bytes(8, "little") for stream in streams)
    body = len(streams).to_bytes(8, "little") + sizes + b"".join(streams)
    return base64.b64encode(zlib.compress(body, 9 if len(body) < _SMALL_BYTES else 1)).decode()


def unpack(text: str) -> list[Any]:
    """Return the results that `pack` has packed.

    Raises:
        FrameError: the text is not that of results.
    """
    try:
        body = zlib.decompress(base64.b64decode(text, validate=True))
        num, at = int.from_bytes(body[:8], "little"), 8
        sizes = [int.from_bytes(body[at + 8 * place : at + 8 * place + 8], "little") for place in range(num)]
        at += 8 * num
        results = []
        for size in sizes:
            results.append(read_stream(body[at : at + size]))
            at += size
    except (ValueError, zlib.error, binascii.Error, pa.ArrowException, OverflowError, MemoryError) as error:
        raise FrameError(f"the results of a question cannot be read: {error}") from error
    return results


def fit(results: Sequence[Any], max_bytes: int, max_rows: int) -> tuple[str, list[int]]:
    """Return as much of some results as fits, as text, and the places of those whose last rows are missing."""
    kept = [result.slice(0, max_rows) for result in results]
    while len(text := pack(kept)) > max_bytes and any(len(one) for one in kept):
        part = max_bytes / len(text) * 0.9
        kept = [one.slice(0, int(len(one) * part)) for one in kept]
    pairs = zip(kept, results, strict=True)
    return text, [place for place, (one, result) in enumerate(pairs) if len(one) < len(result)]
