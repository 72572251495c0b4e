"""Checks of the arguments of public functions: each error names the argument, its value and what is allowed.

A check returns what the function goes on with, so that a subclass of str or one of NumPy's integers does not travel.
"""

from __future__ import annotations

import math
import operator
import os
import reprlib
from collections.abc import Iterable, Mapping

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
    "check_variables",
    "shown",
]

_MOST_S = 1e9
"""Thirty years: what waits takes times a few times as long, and neither more nor infinity."""

_MAX_CHARS = 200
"""Of a value in an error."""

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 80


def shown(value: object) -> str:
    """*value* and its type in words, short whatever it is: ``'4', a str``."""
    kind = type(value).__name__
    if value is None or isinstance(value, type):
        return _short(value)
    return f"{_short(value)}, {'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"


def _short(value: object) -> str:
    try:
        text = _repr.repr(value)
        return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
    except Exception:  # noqa: BLE001 user code: `__repr__` and what reprlib asks of containers
        return f"<{type(value).__name__}>"


def check_text(what: str, value: object, *, filled: bool = False) -> str:
    """A string; with *filled* one that is not empty.

    Raises:
        TypeError: it is something else.
        ValueError: it is empty, and must not be.
    """
    if not isinstance(value, str):
        raise TypeError(f"{what} is {shown(value)}: give a string")
    if filled and not value:
        raise ValueError(f"{what} is empty: give at least one character")
    return str(value)


def check_texts(what: str, value: object, example: str) -> tuple[str, ...]:
    """Several strings.

    Args:
        example: what to write, for the error.

    Raises:
        TypeError: one string, which would be taken letter by letter; no sequence; or one of something else.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} is {shown(value)}: give a list of strings, {example}")
    texts = tuple(value)
    for index, text in enumerate(texts):
        check_text(f"{what}[{index}]", text)
    return tuple(map(str, texts))


def check_path(what: str, value: object) -> str:
    """A path, as a string.

    Raises:
        TypeError: neither a string nor a path.
        ValueError: it is empty, or holds a NUL.
    """
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise TypeError(f"{what} is {shown(value)}: give a string or a path")
    if not path or "\0" in path:
        raise ValueError(f"{what} is {shown(value)}: {'it holds a NUL' if path else 'give a path'}")
    return str(path)


def check_number(what: str, value: object, *, least: int | None = None, most: int | None = None) -> int:
    """A whole number.

    Raises:
        TypeError: it is something else; True and False too.
        ValueError: it is below *least* or above *most*.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # that is the question
    except TypeError:
        raise TypeError(f"{what} is {shown(value)}: give a whole number") from None
    if least is not None and number < least:
        raise ValueError(f"{what} is {_short(number)}: give at least {least}")
    if most is not None and number > most:
        raise ValueError(f"{what} is {_short(number)}: give at most {most}")
    return number


def check_seconds(what: str, value: object, *, zero: bool = False) -> float:
    """A time in seconds: more than 0, with *zero* also 0.

    Raises:
        TypeError: it is not a number.
        ValueError: it is out of range.
    """
    try:
        if isinstance(value, (bool, str, bytes, bytearray)):  # float("3") is 3.0
            raise TypeError
        seconds = float(value)  # type: ignore[arg-type]  # that is the question
    except OverflowError:
        seconds = math.inf
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {shown(value)}: give a number of seconds") from None
    if not 0 <= seconds <= _MOST_S or (seconds == 0 and not zero):
        allowed = "0 or more" if zero else "more than 0"
        raise ValueError(f"{what} is {_short(value)} s: give {allowed}, and at most {_MOST_S:g}")
    return seconds


def check_flag(what: str, value: object) -> bool:
    """True or False.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} is {shown(value)}: give True or False")
    return value


def check_callable(what: str, value: object) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: it cannot be.
    """
    if not callable(value):
        raise TypeError(f"{what} is {shown(value)}: give a function")


def check_instance(what: str, value: object, kind: type | tuple[type, ...], example: str) -> None:
    """Refuse what is not of a class.

    Args:
        example: what to write, for the error.

    Raises:
        TypeError: it is of another class.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {shown(value)}: give {example}")


def check_mapping(what: str, value: object, example: str) -> dict[str, object]:
    """A mapping whose keys are strings.

    Args:
        example: what to write, for the error.

    Raises:
        TypeError: it is something else, or a key is not a string.
        ValueError: a key is empty.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} is {shown(value)}: give a mapping, {example}")
    return {check_text(f"a key of {what}", key, filled=True): entry for key, entry in value.items()}


def check_variables(what: str, value: object) -> dict[str, str | None]:
    """Variables of an environment; None is one to unset. A path becomes a string, a number does not.

    Raises:
        TypeError: no mapping, or a name or value of another type.
        ValueError: a name or value that no process can have.
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
