"""Builds dataclasses from plain JSON documents, checking every field against its annotation."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable
from functools import partial

from monarch_hpc.core.dataclass import hints_of
from monarch_hpc.core.errors import FrameError

__all__ = ["MAX_BITS", "build"]

MAX_BITS = 64
"""Size limit of a whole number: incarnations have as many bits, and nothing has more."""

_HINTS: dict[type, dict[str, object]] = {}
_QUICK: dict[type, Callable[[object], object]] = {}
_USES: dict[type, int] = {}

_MAX_SLOW = 20
"""Documents of a class that are built without a function of its own: to compile one takes as long as twenty of them,
and most commands get a few of each class."""


class _UnexpectedError(Exception):
    """A document that is wrong, or that only the slow way understands."""


def build(cls: type, document: dict[str, object], where: str) -> object:
    """Make an object of the dataclass *cls* from *document*.

    Args:
        where: the document's name, for errors.

    Raises:
        FrameError: a field is missing, unknown, of the wrong type or out of range.
    """
    uses = _USES[cls] = _USES.get(cls, 0) + 1
    if uses > _MAX_SLOW:
        try:
            return _quickly(cls, document)
        except _UnexpectedError:
            pass
    return _slowly(cls, document, where)


def _slowly(cls: type, document: dict[str, object], where: str) -> object:
    """See `build`; knows the place of each value."""
    hints = _hints_of(cls)
    if document.keys() != hints.keys():
        wrong = sorted(set(document) ^ set(hints))
        raise FrameError(f"{where}: fields {wrong!s:.200} are missing or unknown")
    return cls(**{name: _checked(hint, document[name], f"{where}.{name}") for name, hint in hints.items()})


def _checked(hint: object, value: object, where: str) -> object:
    origin = typing.get_origin(hint)
    if origin is list and isinstance(value, list):
        (item,) = typing.get_args(hint)
        return [_checked(item, entry, where) for entry in value]
    if origin is dict and isinstance(value, dict):
        _, item = typing.get_args(hint)
        return {key: _checked(item, entry, f"{where}.{key:.40}") for key, entry in value.items()}
    if hint is object:
        return value
    if hint is float and isinstance(value, (int, float)) and type(value) is not bool:
        number = _finite(value)
        if number is not None:
            return number
    if hint is int and type(value) is int and value.bit_length() > MAX_BITS:
        raise FrameError(f"{where}: a number of {value.bit_length()} bits, more than {MAX_BITS}")
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if dataclasses.is_dataclass(hint) and isinstance(value, dict):
            return _slowly(hint, value, where)
        if type(value) is hint and hint is not float:
            return value
    raise FrameError(f"{where}: {value!r:.80} is not of type {hint}")


def _finite(value: float) -> float | None:
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _hints_of(cls: type) -> dict[str, object]:
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = hints_of(cls)
    return hints


# ---- the quick way: a function for each class, which accepts no more than the slow one ----


def _quickly(cls: type, document: object) -> object:
    quick = _QUICK.get(cls)
    if quick is None:
        quick = _QUICK[cls] = _compile(cls)
    return quick(document)


def _compile(cls: type) -> Callable[[object], object]:
    hints = _hints_of(cls)
    names: dict[str, object] = {"C": cls, "Unexpected": _UnexpectedError}
    lines = [f"if type(d) is not dict or len(d) != {len(hints)}: raise Unexpected", "try:"]
    lines += [f"  v{place} = d[{name!r}]" for place, name in enumerate(hints)]
    lines += ["  pass", "except KeyError: raise Unexpected from None"]
    for place, hint in enumerate(hints.values()):
        value = f"v{place}"
        if hint in (str, bool):
            names[f"T{place}"] = hint
            lines.append(f"if type({value}) is not T{place}: raise Unexpected")
        elif hint is not object:
            names[f"F{place}"] = _quick_check(hint)
            lines.append(f"{value} = F{place}({value})")
    fields = ", ".join(f"{name}=v{place}" for place, name in enumerate(hints))
    source = "\n ".join(["def quick(d):", *lines, f"return C({fields})"])
    exec(source, names)  # of names of fields alone
    return typing.cast("Callable[[object], object]", names["quick"])


def _quick_check(hint: object) -> Callable[[object], object]:
    """A function that returns a value as *hint* wants it."""
    origin = typing.get_origin(hint)
    if origin is list:
        return partial(_quick_list, _quick_check(typing.get_args(hint)[0]))
    if origin is dict:
        return partial(_quick_dict, _quick_check(typing.get_args(hint)[1]))
    if hint is object:
        return lambda value: value
    if hint is int:
        return _quick_int
    if hint is float:
        return _quick_float
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return partial(_quickly, hint)
    return partial(_quick_exact, hint)


def _quick_list(check: Callable[[object], object], value: object) -> object:
    if type(value) is not list:
        raise _UnexpectedError
    return [check(entry) for entry in value]


def _quick_dict(check: Callable[[object], object], value: object) -> object:
    if type(value) is not dict:
        raise _UnexpectedError
    return {key: check(entry) for key, entry in value.items()}


def _quick_int(value: object) -> object:
    if type(value) is not int or value.bit_length() > MAX_BITS:
        raise _UnexpectedError
    return value


def _quick_float(value: object) -> object:
    if type(value) is not float or not math.isfinite(value):
        number = _finite(value) if type(value) is int else None
        if number is None:
            raise _UnexpectedError
        return number
    return value


def _quick_exact(hint: object, value: object) -> object:
    if type(value) is not hint:
        raise _UnexpectedError
    return value
