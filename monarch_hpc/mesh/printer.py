"""Writes what procs print to the controller's own output."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TextIO

__all__ = ["Printer"]

_CLOSE_S = 5.0
"""How long a terminal that stands still may hold up the end of the program."""


class Printer:
    """Writes the procs' lines from a thread of its own: a terminal that stands still stops nothing else."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[TextIO, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="monarch-printer", daemon=True)
        self._thread.start()

    def put(self, stream: TextIO, text: str) -> None:
        """Print *text* soon, after what was put before."""
        self._queue.put((stream, text))

    def close(self) -> None:
        """Print what is left."""
        self._queue.put(None)
        self._thread.join(timeout=_CLOSE_S)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            stream, text = item
            with contextlib.suppress(OSError, ValueError):
                print(text, end="", file=stream, flush=True)
