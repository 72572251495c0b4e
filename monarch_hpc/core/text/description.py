"""Describes objects and exceptions of user classes in text of bounded length, whatever their own code does.

`__str__`, `__repr__`, properties and metaclasses are user code: they may raise anything, even `SystemExit`, lie, or
return a gigabyte. An error report that trusts them fails with them, and the caller would never get its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

__all__ = [
    "class_name",
    "error_class",
    "literal_of",
    "notes_of",
    "place_of",
    "qualified_name",
    "summary_of",
    "text_of",
    "trace_of",
    "traceback_of",
]

_MAX_NAME_CHARS = 200
"""Longest name of a class, and longest literal within a sentence: two lines of a terminal."""

_MAX_TEXT_CHARS = 16 << 10
"""Longest message of an exception: more than anyone reads, and several of them fit into any frame and any log."""

_MAX_TRACE_CHARS = 64 << 10
"""Longest formatted traceback: about 500 frames."""

_MAX_FRAMES = 1000
"""Frames shown of one traceback: as many as Python's recursion limit; the last ones, nearest to the raise."""

_MAX_RELATED = 64
"""Exceptions that one traceback shows: causes, contexts and members of groups. Formatting takes 0.1 ms each."""

# The C descriptors themselves: a user's class may shadow these names with attributes that do anything.
_NAME: Any = vars(type)["__name__"]
_QUALNAME: Any = vars(type)["__qualname__"]
_MODULE: Any = vars(type)["__module__"]
_TRACEBACK: Any = vars(BaseException)["__traceback__"]
_CAUSE: Any = vars(BaseException)["__cause__"]
_CONTEXT: Any = vars(BaseException)["__context__"]
_MEMBERS: Any = vars(BaseExceptionGroup)["exceptions"]


def class_name(value: object) -> str:
    """The name of the class of *value*."""
    return _bounded(_NAME.__get__(type(value)), _MAX_NAME_CHARS)


def qualified_name(cls: type) -> str:
    """Module and name of *cls*, as in ``__main__.Trainer``."""
    return _bounded(f"{cls.__module__}.{cls.__qualname__}", _MAX_NAME_CHARS)


def error_class(error: BaseException) -> str:
    """Module and name of the class of *error*, as in ``json.decoder.JSONDecodeError``; without that of builtins."""
    name = _bounded(_QUALNAME.__get__(type(error)), _MAX_NAME_CHARS)
    try:
        module = _MODULE.__get__(type(error))
    except AttributeError:
        module = None
    known = type(module) is str and module != "builtins"
    return _bounded(f"{module}.{name}", _MAX_NAME_CHARS) if known else name


def text_of(value: object) -> str:
    """``str(value)``; if that raises, a note that names the exception's class."""
    return _render(str, value, _MAX_TEXT_CHARS)


def literal_of(value: object) -> str:
    """``repr(value)``, short enough for a sentence; if that raises, a note that names the exception's class."""
    return _render(repr, value, _MAX_NAME_CHARS)


def summary_of(error: object) -> str:
    """The class and the message of an exception, as in the last line of its traceback."""
    return f"{class_name(error)}: {text_of(error)}"


def trace_of(error: BaseException) -> str:
    """The formatted traceback with causes and contexts, as Python prints it, as far as the exception's code permits."""
    import traceback  # late: nothing else of a program needs it before its agent has been started

    trace = traceback_of(error)
    related = _count_related(error)
    if related <= _MAX_RELATED:
        try:
            lines = traceback.format_exception(type(error), error, trace, limit=-_MAX_FRAMES)
            return _bounded("".join(lines), _MAX_TRACE_CHARS)
        except BaseException:  # noqa: BLE001 attributes of the exception are user code; its frames are not
            note = ""
    else:
        note = f"(at least {related - 1} related exceptions are not shown)\n"
    try:
        lines = traceback.format_tb(trace, limit=-_MAX_FRAMES)
    except BaseException:  # noqa: BLE001 a module's loader, which provides the source lines, is user code
        lines = []
    frames = _bounded("".join(lines), _MAX_TRACE_CHARS)
    return f"Traceback (most recent call last):\n{frames}{summary_of(error)}\n{note}"


def traceback_of(error: BaseException) -> TracebackType | None:
    """The traceback object of *error*."""
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    return trace


def place_of(error: BaseException) -> str:
    """The file and the line that raised *error*, as in ``/home/me/train.py:12``; empty if it was not raised."""
    trace = traceback_of(error)
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def notes_of(error: BaseException) -> list[str]:
    """The notes added to *error*."""
    try:
        notes: Any = BaseException.__getattribute__(error, "__notes__")
    except BaseException:  # noqa: BLE001 without notes there is no attribute, and a class may compute it
        return []
    return [note for note in notes if type(note) is str] if type(notes) is list else []


def _count_related(error: BaseException) -> int:
    """The number of exceptions in a traceback of *error*, itself included; counting stops soon after the limit."""
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


def _render(convert: Callable[[object], str], value: object, max_chars: int) -> str:
    try:
        return _bounded(convert(value), max_chars)
    except BaseException as error:  # noqa: BLE001 user code; its exception is part of the description
        return f"<{convert.__name__}() of {class_name(value)} raised {class_name(error)}>"


def _bounded(text: str, max_chars: int) -> str:
    """A plain string without surrogates; if *text* is too long, its middle is replaced by a note."""
    num = str.__len__(text)  # a subclass of str may override any method
    if num > max_chars:
        head, tail = (
            str.__getitem__(text, slice(max_chars // 2)),
            str.__getitem__(text, slice(num - max_chars // 2, num)),
        )
        text = f"{head} ... {num - max_chars} characters left out ... {tail}"
    return str.encode(text, "utf-8", "backslashreplace").decode()
