"""Records of Python's `logging` on their way from a proc to the program: marked lines in the proc's stderr.

They share the pipe with all other output, so that a record survives the death of its writer and stays in order with
printed lines. The mark is the record separator of RFC 7464, JSON text sequences.
"""

from __future__ import annotations

import json
import logging
from dataclasses import astuple

from monarch_hpc.core.dataclass import dataclass

__all__ = ["MARK", "LogRecord", "Unmarker", "parse_record", "render_record", "split_marked"]

MARK = "\x1e"

_MARK = MARK.encode()

_MAX_CHARS = 8 << 10
"""Limit of a record's text. A character may need six bytes as JSON, and a line of more than 64 KiB would be cut."""

_MAX_RECORD_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record.

    Attributes:
        name: name of the logger.
        level: its number, as in `logging`.
        text: the message, with the traceback if there is one; may have several lines.
        at_s: when it was made, in seconds since the epoch.
        actor: name of the actor that made it; empty outside endpoints.
        path: the source file that made it.
        line: the line in that file.
        function: the function in that file.
        thread: name of the thread that made it.
    """

    name: str
    level: int
    text: str
    at_s: float
    actor: str
    path: str
    line: int
    function: str
    thread: str

    def __str__(self) -> str:
        return f"{logging.getLevelName(self.level)} {self.name}: {self.text}"


def render_record(record: LogRecord) -> bytes:
    """Return the line for *record*, with its mark and line feed; a long text is shortened in its middle."""
    fields: list[object] = list(astuple(record))
    for index, value in enumerate(fields):
        if isinstance(value, str) and len(value) > (limit := _MAX_CHARS if value is record.text else 256):
            left_out = len(value) - limit
            fields[index] = f"{value[: limit // 2]}... {left_out} characters left out ...{value[-limit // 2 :]}"
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"))
    return f"{MARK}{text}\n".encode("utf-8", "backslashreplace")


def parse_record(line: str) -> LogRecord | None:
    """Read what `render_record` rendered, without the line feed; None for anything else."""
    if not line.startswith(MARK):
        return None
    try:
        fields = json.loads(line[1:])
    except (ValueError, RecursionError):
        return None
    kinds = (str, int, str, float, str, str, int, str, str)
    if not isinstance(fields, list) or len(fields) != len(kinds):
        return None
    if any(type(value) is not kind for value, kind in zip(fields, kinds, strict=True)):
        return None
    return LogRecord(*fields)


def split_marked(line: str) -> list[str]:
    """Return *line*, split in two if a record follows an unfinished line."""
    at = line.find(MARK)
    if at <= 0 or parse_record(line[at:]) is None:
        return [line]
    return [line[:at], line[at:]]


class Unmarker:
    """Turns the output of a proc into text for people: records are formatted, all else is unchanged.

    Args:
        records: whether to look for records, which only stderr has.
    """

    def __init__(self, *, records: bool) -> None:
        self._records = records
        self._held = b""
        self._in_line = False

    def feed(self, data: bytes) -> bytes:
        """Return the text for *data*; an unfinished record is held back."""
        if not self._records or (not self._held and _MARK not in data):
            self._in_line = not data.endswith(b"\n")
            return data
        *lines, rest = (self._held + data).split(b"\n")
        parts = [self._line(line) for line in lines]
        self._held = b""
        at = rest.find(_MARK)
        if at >= 0 and len(rest) - at < _MAX_RECORD_BYTES:
            rest, self._held = rest[:at], rest[at:]
        if rest:
            self._in_line = True
            parts.append(rest)
        return b"".join(parts)

    def flush(self) -> bytes:
        """Return what was held back, and end the last line if it is unfinished."""
        rest, self._held = self._held, b""
        end = b"\n" if rest or self._in_line else b""
        self._in_line = False
        return rest + end

    def _line(self, line: bytes) -> bytes:
        in_line, self._in_line = self._in_line, False
        at = line.find(_MARK)
        record = parse_record(line[at:].decode("utf-8", "replace")) if at >= 0 else None
        if record is None:
            return line + b"\n"
        before = line[:at] + b"\n" if at or in_line else b""
        return before + f"{record}\n".encode("utf-8", "replace")
