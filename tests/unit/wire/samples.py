"""Sample control messages: one of each kind, with a value in each field."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.table import MESSAGES

__all__ = ["sample_messages"]

_VALUES: dict[Any, object] = {str: "text", int: 7, float: 1.5, bool: True, object: [1, None, {"b": 2.5}]}


def sample_messages() -> list[Message]:
    """Make one message of each kind."""
    return [_sample(cls) for cls in MESSAGES.values()]


def _sample(hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return [_sample(arguments[0])]
    if origin is dict:
        return {"key": _sample(arguments[1])}
    if dataclasses.is_dataclass(hint):
        return hint(**{name: _sample(kind) for name, kind in typing.get_type_hints(hint).items()})  # type: ignore[operator]
    return _VALUES[hint]
