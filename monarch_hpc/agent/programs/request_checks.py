"""Validates clients' requests for programs: fields of the right type may hold impossible values."""

from __future__ import annotations

import os
import signal

from monarch_hpc.core.process.words import is_word
from monarch_hpc.wire.control.programs import ReadOutput, ResizeTerminal, SignalProgram, StartProgram

__all__ = ["problem_of"]

_MAX_SIZE = 1 << 16
"""Rows and columns are 16-bit numbers of the kernel."""

_MAX_OFFSET = 1 << 63
_MAX_GRACE_S = 1e9


def problem_of(request: StartProgram | ReadOutput | SignalProgram | ResizeTerminal) -> str:
    """Return why *request* cannot be carried out; empty if it can."""
    match request:
        case StartProgram():
            return _problem_of_start(request)
        case ReadOutput():
            run = request.run
            is_name = run and not run.startswith(".") and "/" not in run and is_word(run)
            return "" if is_name and -1 <= request.offset < _MAX_OFFSET else "no output has such a place"
        case SignalProgram():
            if request.signal not in signal.valid_signals():
                return f"{request.signal} is not a signal"
            return "" if request.grace_s <= _MAX_GRACE_S else f"a grace of {request.grace_s:g} s is too long"
        case ResizeTerminal():
            return _problem_of_size([request.rows, request.columns])


def _problem_of_start(order: StartProgram) -> str:
    if not order.argv or not order.argv[0]:
        return "a program needs a command line"
    if not os.path.isabs(order.cwd):
        return f"the working folder {order.cwd!r:.80} is not an absolute path"
    if not 0 <= order.umask <= 0o777:
        return f"umask {order.umask:o} is out of range"
    if not (0 <= order.limit_s <= _MAX_GRACE_S and 0 <= order.grace_s <= _MAX_GRACE_S):
        return f"a limit of {order.limit_s:g} s with a grace of {order.grace_s:g} s is out of range"
    for name in order.environment:
        if not name or "=" in name:
            return f"no variable is called {name!r:.80}"
    for text in (*order.argv, order.cwd, *order.environment, *order.environment.values()):
        if not is_word(text):
            return f"no argument, variable or path can be {text!r:.80}"
    return _problem_of_size(order.terminal) if order.terminal else ""


def _problem_of_size(size: list[int]) -> str:
    fits = len(size) == 2 and all(0 <= number < _MAX_SIZE for number in size)
    return "" if fits else f"no terminal has the size {size!s:.80}"
