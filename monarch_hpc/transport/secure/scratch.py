"""Memory for sealing and opening chunks, shared by all channels of a process: few need it at a time."""

from __future__ import annotations

__all__ = ["Scratch"]

_KEPT = 4


class Scratch:
    """Pieces of memory of *num_bytes* each; for any thread."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._spare: list[memoryview] = []  # list methods are atomic

    def take(self) -> memoryview:
        """Return a piece, with any contents."""
        try:
            return self._spare.pop()
        except IndexError:
            return memoryview(bytearray(self._num_bytes))

    def give(self, piece: memoryview) -> None:
        """Take a piece back, which nobody uses any more."""
        if len(self._spare) < _KEPT:
            self._spare.append(piece)
