"""The base of all control messages, and their encoding as JSON."""

from __future__ import annotations

import dataclasses
import json

from monarch_hpc.core.dataclass import dataclass

__all__ = ["Message", "encode"]


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages."""


def encode(message: Message) -> bytes:
    """Render *message* for the body of a CONTROL frame."""
    return json.dumps({"op": type(message).__name__, **dataclasses.asdict(message)}, separators=(",", ":")).encode()
