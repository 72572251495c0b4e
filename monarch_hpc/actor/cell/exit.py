"""Ends a forked child of a process when the code of an actor raises SystemExit in it."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

__all__ = ["exit_process"]

_CODE: Any = vars(SystemExit)["code"]
"""The descriptor itself: a subclass may define an attribute of that name with any behaviour."""


def exit_process(leaving: BaseException) -> NoReturn:
    """Flush output and end the process at once, with the exit status that Python would use."""
    code = _CODE.__get__(leaving)
    status = 0 if code is None else int.__and__(code, 0xFF) if issubclass(type(code), int) else 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # user code may have replaced or closed the streams
        os._exit(status)
