"""Checks the arguments of public functions; each error names the argument, its value and what is allowed.

A check returns the value in its plain type, so that no subclass of str and no NumPy integer is sent to other processes.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Iterable, Mapping

from monarch_hpc.core.text.description import literal_of

__all__ = [
    "check_callable",
    "check_flag",
    "check_instance",
    "check_mapping",
    "check_number",
    "check_path",
    "check_seconds",
    "check_text",
    "check_texts",
    "check_time_limit",
    "check_variables",
    "shown",
]

_MOST_S = 1e9
"""About thirty years: the functions that wait accept a few times as much, but not arbitrarily much, nor infinity."""

_MAX_CHARS = 200
"""Longest text of a value in an error message."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


def shown(value: object) -> str:
    """*value* and its type in words, of bounded length: ``'4', a str``."""
    kind = type(value).__name__
    if value is None or isinstance(value, type):
        return _short(value)
    return f"{_short(value)}, {'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _short(value: object) -> str:
    try:
        text = _repr.repr(value)
        return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
    except BaseException:  # noqa: BLE001 user code: `__repr__` and what reprlib asks of containers
        return literal_of(value)


def check_text(what: str, value: object, *, filled: bool = False) -> str:
    """Return *value* as a plain string; with *filled* it must not be empty.

    Raises:
        TypeError: *value* is not a string.
        ValueError: it is empty and *filled* is set.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is {shown(value)}: give a string")
    if filled and not value:
        raise ValueError(f"{what} is empty: give at least one character")
    return str(value)


def check_texts(what: str, value: object, example: str) -> tuple[str, ...]:
    """Return an iterable of strings as a tuple.

    Args:
        example: a valid argument, shown in the error.

    Raises:
        TypeError: a single string, which would be split into letters; not iterable; or an element is not a string.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} is {shown(value)}: give a list of strings, {example}")
    texts = tuple(value)
    for index, text in enumerate(texts):
        check_text(f"{what}[{index}]", text)
    return tuple(map(str, texts))


def check_path(what: str, value: object) -> str:
    """Return a path as a string.

    Raises:
        TypeError: *value* is neither a string nor a path.
        ValueError: it is empty or contains a NUL.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"{what} is {shown(value)}: give a string or a path")
    if not path or "\0" in path:
        raise ValueError(f"{what} is {shown(value)}: {'it holds a NUL' if path else 'give a path'}")
    return str(path)


def check_number(what: str, value: object, *, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number as an int.

    Raises:
        TypeError: *value* is not a whole number; True and False are refused, too.
        ValueError: it is below *least* or above *most*.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # the type is what is checked here
    except TypeError:
        raise TypeError(f"{what} is {shown(value)}: give a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"{what} is {_short(number)}: give at least {least}")
    if most is not None and number > most:
        raise ValueError(f"{what} is {_short(number)}: give at most {most}")
    return number


def check_seconds(what: str, value: object, *, zero: bool = False) -> float:
    """Return a time in seconds: more than 0, or with *zero* at least 0.

    Raises:
        TypeError: *value* is not a number.
        ValueError: it is out of range.
    """
    try:
        if isinstance(value, (bool, str, bytes, bytearray)):  # float("3") is 3.0
            raise TypeError
        seconds = float(value)  # type: ignore[arg-type]  # the type is what is checked here
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {shown(value)}: give a number of seconds") from None
    if not 0 <= seconds <= _MOST_S or (seconds == 0 and not zero):
        allowed = "0 or more" if zero else "more than 0"
        raise ValueError(f"{what} is {_short(value)} s: give {allowed}, and at most {_MOST_S:g}")
    return seconds


def check_time_limit(what: str, value: object) -> float | None:
    """Return a time in seconds of at least 0, or None for no limit; raises as `check_seconds` does."""
    return None if value is None else check_seconds(what, value, zero=True)


def check_flag(what: str, value: object) -> bool:
    """Return *value*, which must be True or False.

    Raises:
        TypeError: it is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} is {shown(value)}: give True or False")
    return value


def check_callable(what: str, value: object) -> None:
    """Refuse a value that cannot be called.

    Raises:
        TypeError: *value* is not callable.
    """
    if not callable(value):
        raise TypeError(f"{what} is {shown(value)}: give a function")


def check_instance(what: str, value: object, kind: type | tuple[type, ...], example: str) -> None:
    """Refuse a value that is not an instance of *kind*.

    Args:
        example: a valid argument, shown in the error.

    Raises:
        TypeError: *value* is of another class.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {shown(value)}: give {example}")


def check_mapping(what: str, value: object, example: str) -> dict[str, object]:
    """Return a mapping with string keys as a dict.

    Args:
        example: a valid argument, shown in the error.

    Raises:
        TypeError: *value* is not a mapping, or a key is not a string.
        ValueError: a key is empty.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is {shown(value)}: give a mapping, {example}")
    return {check_text(f"a key of {what}", key, filled=True): entry for key, entry in value.items()}


def check_variables(what: str, value: object) -> dict[str, str | None]:
    """Return environment variables as a dict; the value None unsets a variable. Paths become strings, numbers do not.

    Raises:
        TypeError: *value* is not a mapping, or a name or value has a wrong type.
        ValueError: a name or value that cannot stand in an environment.
    """
    variables: dict[str, str | None] = {}
    for name, given in check_mapping(what, value, "{'NAME': 'value'}").items():
        where = f"{what}[{_short(name)}]"
        if "=" in name or not _is_possible(name):
            raise ValueError(f"{where}: a name of a variable holds neither '=' nor NUL, and can be encoded")
        text = os.fspath(given) if isinstance(given, os.PathLike) else given
        if text is not None and not isinstance(text, str):
            example = f", {str(given)!r}," if isinstance(given, (int, float)) else ""
            raise TypeError(f"{where} is {shown(given)}: give a string{example} or None to unset it")
        if text is not None and not _is_possible(text):
            raise ValueError(f"{where} is {_short(text)}: a value holds no NUL, and can be encoded")
        variables[name] = text
    return variables


def _is_possible(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
