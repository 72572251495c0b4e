"""The base of all control messages, and their encoding as JSON; `table` decodes all of them."""

from __future__ import annotations

import dataclasses
import json
from typing import TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import build

__all__ = ["Message", "encode", "make", "parse"]

M = TypeVar("M", bound="Message")


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages."""


def encode(message: Message) -> bytes:
    """Render *message* for the body of a CONTROL frame."""
    return json.dumps({"op": type(message).__name__, **dataclasses.asdict(message)}, separators=(",", ":")).encode()


def parse(body: bytes | bytearray | memoryview) -> tuple[str, dict[str, object]]:
    """Return the name of the message in the body of a CONTROL frame, and its fields, see `make`.

    Raises:
        FrameError: it is something else.
    """
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested a hundred thousand deep
        raise FrameError(f"control message is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise FrameError("control message is not an object")
    name = document.pop("op", None)
    if not isinstance(name, str):
        raise FrameError(f"unknown control message {name!r:.80}")
    return name, document


def make(cls: type[M], document: dict[str, object]) -> M:
    """Make a message of its fields.

    Raises:
        FrameError: a field is missing, unknown or of the wrong type.
    """
    try:
        message = build(cls, document, cls.__name__)
    except RecursionError as error:  # the error text shows the bad value, which may be nested as deeply
        raise FrameError(f"{cls.__name__}: nested too deeply") from error
    assert isinstance(message, cls)
    return message
