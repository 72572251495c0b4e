"""The agent's own log beside its stderr, which has no reader once the batch script's host is gone, and srun with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

__all__ = ["OwnLog"]


class OwnLog(logging.Handler):
    """Writes records as lines with their time; begun once, by an agent that has lost its head.

    Args:
        append: appends bytes to the file; it must not wait for the file system.
    """

    def __init__(self, append: Callable[[bytes], None]) -> None:
        super().__init__()
        self._append = append

    def begin(self) -> None:
        """Write all records from here on; no-op if it does already."""
        if self not in logging.root.handlers:
            logging.root.addHandler(self)

    def close(self) -> None:
        """Write no more records."""
        logging.root.removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, as `logging` demands of a handler."""
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        self._append(f"{clock} {self.format(record)}\n".encode(errors="replace"))
