"""Tells the exceptions of signal handlers from those of the code that they interrupt, and keeps Ctrl-C's exit status.

Python runs a handler between any two instructions of the main thread: what it raises (Ctrl-C, a timeout by
`signal.alarm`) seems to come from whatever ran there, such as the pickling of an argument or the rebuilding of a value.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FunctionType, MethodType

from monarch_hpc.core.process.thread import in_main_thread
from monarch_hpc.core.text.description import traceback_of

__all__ = ["from_handler", "interrupt_kept", "may_be_signal"]


def may_be_signal(error: BaseException) -> bool:
    """Whether a signal handler may have raised *error*; then it is for the program, whatever code it interrupted."""
    if not in_main_thread():
        return False
    return issubclass(type(error), (KeyboardInterrupt, SystemExit)) or _passed_handler(error)


def from_handler(error: BaseException) -> bool:
    """Whether *error* is Ctrl-C, or the exception of a signal handler rather than of the code that it interrupted."""
    return in_main_thread() and (issubclass(type(error), KeyboardInterrupt) or _passed_handler(error))


@contextlib.contextmanager
def interrupt_kept() -> Iterator[None]:
    """Let a program that Ctrl-C ends still exit by SIGINT, whatever runs meanwhile; for functions at exit.

    Python forgets that a KeyboardInterrupt ends the program, which then exits with 1, when text is executed: the import
    of a module that defines a named tuple is enough.
    """
    # Interactive sessions go on after Ctrl-C, and leave `last_type` set.
    interrupted = getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1")
    try:
        yield
    finally:
        if interrupted:
            with contextlib.suppress(KeyboardInterrupt):
                exec("raise KeyboardInterrupt")  # Python's only way to set what executing text has cleared


def _passed_handler(error: BaseException) -> bool:
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = traceback_of(error)
    while trace is not None and trace.tb_frame.f_code not in handlers:
        trace = trace.tb_next
    return trace is not None


def _code_of(handler: object) -> object:
    function = getattr(handler, "func", handler)  # of a partial
    if isinstance(function, FunctionType | MethodType):
        return function.__code__
    return getattr(getattr(type(function), "__call__", None), "__code__", None)  # noqa: B004 of an object
