"""A logger whose calls do not raise: a record that cannot be logged is dropped, with a note on stderr.

Filters and handlers are user code. Their exceptions must not come out of our log calls, some of which run on the thread
that drives all I/O of the process.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any

from monarch_hpc.core.process.thread import in_main_thread
from monarch_hpc.core.text.description import summary_of

__all__ = ["Logger"]


class Logger(logging.LoggerAdapter[logging.Logger]):
    """Logs like the standard logger of the same name; a record that cannot be logged is reported on stderr."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a record.

        Raises:
            BaseException: in the main thread, one that is not an `Exception`: it may come from a signal handler.
        """
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})
        except BaseException as error:
            if not issubclass(type(error), Exception) and in_main_thread():
                raise
            with contextlib.suppress(BaseException):
                print(f"{self.logger.name}: {msg!r} could not be logged: {summary_of(error)}", file=sys.stderr)
