"""A logger that raises nothing: a record that cannot be logged ends no more than itself.

Filters and handlers are user code. What they raise must not come out of a line of ours that only takes note of
something: it may stand where the I/O of the whole process is driven.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any

from monarch_hpc.core.description import summary_of

__all__ = ["Logger"]


class Logger(logging.LoggerAdapter[logging.Logger]):
    """Logs as the logger of that name does, and says on stderr what went wrong with a record."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a record.

        Raises:
            BaseException: in the main thread, what is no `Exception`: it may come from a signal handler.
        """
        try:
            super().log(level, msg, *args, **{"stacklevel": 2, **kwargs})
        except BaseException as error:
            if not issubclass(type(error), Exception) and threading.current_thread() is threading.main_thread():
                raise
            with contextlib.suppress(BaseException):
                print(f"{self.logger.name}: {msg!r} could not be logged: {summary_of(error)}", file=sys.stderr)
