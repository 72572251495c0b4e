"""Describes objects and exceptions of foreign classes in texts of bounded length, whatever their own code does.

`__str__`, `__repr__`, properties and metaclasses are user code: they may raise anything, `SystemExit` too, lie, or
return a gigabyte. An error report that trusts them is lost with them, and with it the answer that a caller waits for.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = ["class_name", "literal_of", "notes_of", "summary_of", "text_of", "trace_of", "traceback_of"]

_MAX_NAME_CHARS = 200
"""Of the name of a class, and of an object that is part of a sentence: two lines of a terminal."""

_MAX_TEXT_CHARS = 16 << 10
"""Of the message of an exception: more than anybody reads, and several of them fit into any frame and any log."""

_MAX_TRACE_CHARS = 64 << 10
"""Of a formatted traceback: about 500 frames."""

_MAX_FRAMES = 1000
"""Of one traceback: as many as Python's own limit of recursion allows; the last ones, which say where it was raised."""

_MAX_RELATED = 64
"""Exceptions that one traceback shows: causes, contexts and members of groups. Formatting takes 0.1 ms for each."""

# Taken from where C code keeps them: a class may have attributes of the same names that do anything.
_NAME: Any = vars(type)["__name__"]
_TRACEBACK: Any = vars(BaseException)["__traceback__"]
_CAUSE: Any = vars(BaseException)["__cause__"]
_CONTEXT: Any = vars(BaseException)["__context__"]
_MEMBERS: Any = vars(BaseExceptionGroup)["exceptions"]


def class_name(value: object) -> str:
    """The name of the class of *value*."""
    return _bounded(_NAME.__get__(type(value)), _MAX_NAME_CHARS)


def text_of(value: object) -> str:
    """What `str` makes of *value*; if that raises, a note of what it raised."""
    return _asked(str, value, _MAX_TEXT_CHARS)


def literal_of(value: object) -> str:
    """What `repr` makes of *value*, as short as part of a sentence; if that raises, a note of what it raised."""
    return _asked(repr, value, _MAX_NAME_CHARS)


def summary_of(error: object) -> str:
    """The class and the message of an exception: the last line of its traceback."""
    return f"{class_name(error)}: {text_of(error)}"


def trace_of(error: BaseException) -> str:
    """The formatted traceback with causes and contexts, as Python prints it, as far as the exception lets it."""
    trace = traceback_of(error)
    related = _count_related(error)
    if related <= _MAX_RELATED:
        try:
            lines = traceback.format_exception(type(error), error, trace, limit=-_MAX_FRAMES)
            return _bounded("".join(lines), _MAX_TRACE_CHARS)
        except BaseException:  # noqa: BLE001 attributes of the exception are user code; the frames are not
            note = ""
    else:
        note = f"(at least {related - 1} related exceptions are not shown)\n"
    try:
        lines = traceback.format_tb(trace, limit=-_MAX_FRAMES)
    except BaseException:  # noqa: BLE001 the loader of a module, which is asked for its source, is user code
        lines = []
    frames = _bounded("".join(lines), _MAX_TRACE_CHARS)
    return f"Traceback (most recent call last):\n{frames}{summary_of(error)}\n{note}"


def traceback_of(error: BaseException) -> TracebackType | None:
    """The frames through which *error* came."""
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    return trace


def notes_of(error: BaseException) -> list[str]:
    """The notes that were added to *error*."""
    try:
        notes: Any = BaseException.__getattribute__(error, "__notes__")
    except BaseException:  # noqa: BLE001 there are none, or a class makes them up
        return []
    return [note for note in notes if type(note) is str] if type(notes) is list else []


def _count_related(error: BaseException) -> int:
    """The number of exceptions that a traceback of *error* shows, itself included; not counted far beyond the limit."""
    seen: set[int] = set()
    left = [error]
    while left and len(seen) <= _MAX_RELATED:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        members = _MEMBERS.__get__(one)[: _MAX_RELATED + 1] if issubclass(type(one), BaseExceptionGroup) else ()
        left += [other for other in (_CAUSE.__get__(one), _CONTEXT.__get__(one), *members) if other is not None]
    return len(seen)


def _asked(ask: Callable[[object], str], value: object, max_chars: int) -> str:
    try:
        return _bounded(ask(value), max_chars)
    except BaseException as error:  # noqa: BLE001 user code; that it raised is part of the description
        return f"<{ask.__name__}() of {class_name(value)} raised {class_name(error)}>"


def _bounded(text: str, max_chars: int) -> str:
    """A plain string that any encoding takes, with a note in the middle where it would be too long."""
    num = str.__len__(text)  # it may be of a subclass, which overrides anything
    if num > max_chars:
        head, tail = (
            str.__getitem__(text, slice(max_chars // 2)),
            str.__getitem__(text, slice(num - max_chars // 2, num)),
        )
        text = f"{head} ... {num - max_chars} characters left out ... {tail}"
    return str.encode(text, "utf-8", "backslashreplace").decode()
