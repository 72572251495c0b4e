"""The event loop that runs in a thread, and warnings of reads that block it, at the line that reads.

A read blocks only the loop of its thread, on which no answer depends; but the other coroutines of that loop wait.
A cell of a notebook runs inside of the kernel's loop without its author's doing: it reads as a script does, unwarned.

Nothing here loads asyncio, nor does any module on the way of a call: that takes as long as a tenth of the start of a
program and its first proc, of which many never run a coroutine.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from monarch_hpc.core.process.thread import in_main_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

__all__ = ["is_cancellation", "keep_awake", "running_loop", "warn_of_blocking"]

_TICK_S = 0.2
"""Longest time that the kernel of a notebook takes to notice an interrupt, where nothing else wakes its loop."""

_awake: dict[AbstractEventLoop, tuple[int, TimerHandle]] = {}  # the number of coroutines that wait, and the next tick

_TEXT = (
    "get() blocks the running event loop, and all other coroutines on it, until there is an answer: "
    "write 'await future' instead"
)
_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ITERABLE_COROUTINE | inspect.CO_ASYNC_GENERATOR


def running_loop() -> AbstractEventLoop | None:
    """The event loop that runs in this thread; None if none does."""
    # Another thread may be in the middle of loading it: then no loop runs yet.
    find = getattr(sys.modules.get("asyncio.events"), "_get_running_loop", None)
    return None if find is None else find()


def keep_awake(loop: AbstractEventLoop) -> Callable[[], None]:
    """Wake the loop of a notebook's kernel a few times a second; returns what ends that. Elsewhere it does nothing.

    ipykernel's handler of an interrupt adds a callback that cancels the cell, which wakes no loop that sleeps: a cell
    that awaits a call would go on until its answer comes.
    """
    if "ipykernel" not in sys.modules or not in_main_thread():
        return _nothing

    def tick() -> None:
        _awake[loop] = _awake[loop][0], loop.call_later(_TICK_S, tick)

    def end() -> None:
        num, timer = _awake.pop(loop)
        if num > 1:
            _awake[loop] = num - 1, timer
        else:
            timer.cancel()

    known = _awake.get(loop)
    _awake[loop] = (1, loop.call_later(_TICK_S, tick)) if known is None else (known[0] + 1, known[1])
    return end


def _nothing() -> None:
    pass


def is_cancellation(error: BaseException) -> bool:
    """Whether *error* is the cancellation of a task."""
    kind = getattr(sys.modules.get("asyncio.exceptions"), "CancelledError", None)
    return kind is not None and issubclass(type(error), kind)


def warn_of_blocking() -> None:
    """Warn, once for each line, that it blocks the running event loop of this thread; no-op without such a loop."""
    if running_loop() is None:
        return
    reader: FrameType | None = sys._getframe(1)
    while reader is not None and reader.f_globals.get("__name__", "").startswith("monarch_hpc."):
        reader = reader.f_back
    if reader is not None and _in_coroutine(reader):
        known = reader.f_globals.setdefault("__warningregistry__", {})
        name = reader.f_globals.get("__name__") or "<unknown>"
        warnings.warn_explicit(_TEXT, RuntimeWarning, reader.f_code.co_filename, reader.f_lineno, name, known)


def _in_coroutine(reader: FrameType) -> bool:
    """Whether a coroutine or a callback of the loop runs *reader*, and not a cell of a notebook or a console."""
    frame: FrameType | None = reader
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("asyncio."):
        if _is_cell(frame.f_code):
            return False
        if frame.f_code.co_flags & _COROUTINE:
            return True
        frame = frame.f_back
    return True


def _is_cell(code: CodeType) -> bool:
    return code.co_name == "<module>" or code.co_name.startswith("<cell")
