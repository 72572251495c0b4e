"""Records what the call of an actor is doing while it runs; for `monarch-hpc status --calls`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import HALF, OPEN, RECORD_BYTES, RecordKind

if TYPE_CHECKING:
    from monarch_hpc.telemetry.recorder import Recorder

__all__ = ["CallProgress"]

_WORDS = RECORD_BYTES >> 3
_HEAD, _DUR, _VALUE = 1, 5, 6  # in words of 8 bytes
_HANDLED = int(RecordKind.HANDLED)
_KIND = (1 << 16) - 1


class CallProgress:
    """Writes the upper half of the value of a running call; on the thread that runs it.

    Args:
        recorder: of this process.
        mark: identifies the actor in records.
    """

    def __init__(self, recorder: Recorder, mark: int) -> None:
        self._words = recorder.words
        self._mark = mark
        self._first = layout.RUNNING_AT >> 3
        self._at = 0
        self._low = 0

    def begin(self) -> None:
        """Find the record of the call that has begun; without one, nothing is recorded."""
        if not self._at or not self._is_own(self._at - _VALUE):
            places = range(self._first, self._first + layout.NUM_RUNNING * _WORDS, _WORDS)
            found = next((at for at in places if self._is_own(at)), -_VALUE)
            self._at = found + _VALUE
        self._low = self._words[self._at] & HALF if self._at else 0

    def _is_own(self, at: int) -> bool:
        words = self._words
        head = words[at + _HEAD]
        return head & _KIND == _HANDLED and (head >> 32) & HALF == self._mark and words[at + _DUR] == OPEN

    def note(self, name: int) -> None:
        """Record what the call does from here on: a number in the name table, 0 for nothing."""
        if self._at:
            self._words[self._at] = self._low | name << 32
