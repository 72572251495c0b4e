"""Builds dataclasses from plain JSON documents, checking every field against its annotation."""

from __future__ import annotations

import dataclasses
import math
import types
import typing

from monarch_hpc.core.errors import FrameError

__all__ = ["MAX_BITS", "build"]

MAX_BITS = 64
"""Size limit of a whole number: incarnations have as many bits, and nothing has more."""

_HINTS: dict[type, dict[str, object]] = {}


def build(cls: type, document: dict[str, object], where: str) -> object:
    """Make an object of the dataclass *cls* from *document*.

    Args:
        where: the document's name, for errors.

    Raises:
        FrameError: a field is missing, unknown, of the wrong type or out of range.
    """
    hints = _HINTS.get(cls)
    if hints is None:
        hints = _HINTS[cls] = dict(typing.get_type_hints(cls))
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
            return build(hint, value, where)
        if type(value) is hint and hint is not float:
            return value
    raise FrameError(f"{where}: {value!r:.80} is not of type {hint}")


def _finite(value: float) -> float | None:
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
