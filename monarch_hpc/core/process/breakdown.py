"""The end of a process that cannot go on: its cause on standard error, for the lines that the agent keeps of it.

User code may have replaced anything when this is needed, builtins too: what it needs is looked up beforehand.
"""

from __future__ import annotations

import sys
from faulthandler import dump_traceback_later
from os import _exit, write
from sys import setrecursionlimit
from typing import NoReturn

from monarch_hpc.core.errors import InternalError
from monarch_hpc.core.text.description import trace_of

__all__ = ["break_down"]

_CODE = InternalError.exit_code
_STDERR_FD = 2
_ENOUGH_FRAMES = 1000
_FLUSH_S = 3.0
"""Time for the user's own output to be flushed, which may wait for anything; then the process ends all the same."""


def break_down(what: str, error: BaseException) -> NoReturn:
    """End this process at once, with the exit status of an `InternalError`.

    Args:
        what: what has failed, in words.
    """
    try:
        setrecursionlimit(_ENOUGH_FRAMES)
        dump_traceback_later(_FLUSH_S, exit=True, file=_STDERR_FD)
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BaseException:  # noqa: BLE001 user code may have replaced or closed it
                continue
        text = f"{trace_of(error)}\nthis process ends: {what}\n"
        write(_STDERR_FD, text.encode(errors="backslashreplace"))
    except BaseException:  # noqa: BLE001 the interpreter itself is broken, or the descriptor is closed
        write(_STDERR_FD, b"this process ends: its interpreter does not work any more\n")
    finally:
        _exit(_CODE)
