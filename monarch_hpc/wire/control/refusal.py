"""Refusals: answers to control messages that cannot be used, naming the message as far as it can be read."""

from __future__ import annotations

import contextlib
import dataclasses
import json

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["Refused", "refuse"]

_MAX_CHARS = 200
"""Limit of a name that is repeated from the message; real names are shorter."""

_TOO_LARGE = 1 << 63
"""Numbers from here on belong to no mesh and no request."""


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Head or agent: a request was refused, and why.

    Args:
        request: name of the refused message; empty if it could not be read.
        mesh: its field of that name; 0 if it has none.
        number: likewise, or its field *ticket*.
    """

    run: str
    problem: str
    request: str = ""
    mesh: int = 0
    number: int = 0


def refuse(message: Message | bytes | bytearray | memoryview, problem: str) -> Refused:
    """Make the answer to a message that cannot be used, whatever its fields hold.

    Args:
        message: the message, or the body that `decode` refused.
    """
    fields: dict[str, object] = {}
    if isinstance(message, Message):
        fields = {**dataclasses.asdict(message), "op": type(message).__name__}
    else:
        with contextlib.suppress(ValueError, RecursionError):
            document = json.loads(bytes(message))
            fields = document if isinstance(document, dict) else fields
    proc = fields.get("proc")
    if isinstance(proc, dict):  # the key of a `ProcReport`
        fields = {**proc, **fields}

    def text(key: str) -> str:
        value = fields.get(key)
        return value[:_MAX_CHARS] if isinstance(value, str) else ""

    def number(*keys: str) -> int:
        values = (fields.get(key) for key in keys)
        return next((value for value in values if type(value) is int and 0 <= value < _TOO_LARGE), 0)

    return Refused(text("run"), problem, text("op"), number("mesh"), number("number", "ticket"))
