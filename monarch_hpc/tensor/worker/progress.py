"""The operation that a rank executes, and the line that issued it, for `monarch-hpc status --calls`."""

from __future__ import annotations

from monarch_hpc.telemetry.progress import CallProgress
from monarch_hpc.telemetry.recorder import Recorder

__all__ = ["FrameLines", "OpProgress"]

FrameLines = tuple[int, tuple[str, ...], bytes]
"""See `stream.sites.SiteLines.of`."""

_MAX_NAMES = 1 << 14
"""Number of pairs of operation and line that are kept at hand."""


class OpProgress:
    """Records each operation, in some hundred nanoseconds.

    Args:
        recorder: of this process; None records nothing.
        mark: identifies the worker in its records.
    """

    def __init__(self, recorder: Recorder | None, mark: int) -> None:
        self._recorder = recorder
        self._call = None if recorder is None else CallProgress(recorder, mark)
        self._lines: list[str] = [""]
        self._names: dict[tuple[str, int], int] = {}
        self._base = 0
        self._numbers: memoryview[int] = memoryview(b"").cast("H")

    def begin(self, base: int, lines: FrameLines) -> None:
        """Begin a frame, whose first operation has the number *base*."""
        if self._call is None:
            return
        first, texts, numbers = lines
        self._lines[first + 1 :] = texts
        self._base, self._numbers = base, memoryview(numbers).cast("H")
        self._call.begin()

    def note(self, seq: int, name: str) -> None:
        """Record that an operation begins."""
        if self._call is None:
            return
        place = seq - self._base
        line = self._numbers[place] if place < len(self._numbers) else 0
        number = self._names.get((name, line))
        self._call.note(self._number(name, line) if number is None else number)

    def _number(self, name: str, line: int) -> int:
        assert self._recorder is not None
        if len(self._names) >= _MAX_NAMES:
            self._names.clear()
        shown = name.replace(":", ".").removesuffix(".__get__")
        place = self._lines[line] if line < len(self._lines) else ""
        words = f"{shown} at {place}" if place else shown
        number = self._names[name, line] = self._recorder.names.operation(words)
        return number

    def end(self) -> None:
        """End a frame."""
        if self._call is not None:
            self._call.note(0)
