"""The protocol between a waiting worker and a program that attaches to it: small JSON documents in sealed frames.

program                                    worker
engage  allocation, rank, key, config  ->
                                       <-  busy      attached to another program
                                       <-  head      term, rank and addresses, from the head's host
head    the same, to the others        ->
                                       <-  ready     contents of ready.json, from the head's host
                                       <-  failed    cause of its agent's end
leave   for_good                       ->
                                       <-  left
"""

from __future__ import annotations

import json
from typing import Any

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["WORKERS", "parse_message", "render_message"]

WORKERS = b"waiting workers!".hex()
"""Replaces the allocation's id in greetings between programs and workers."""


def render_message(kind: str, **fields: object) -> Frame:
    """Encode a message."""
    return Frame(Kind.CONTROL, body=json.dumps({"kind": kind, **fields}).encode())


def parse_message(frame: Frame) -> tuple[str, dict[str, Any]]:
    """Decode a message into its kind and fields.

    Raises:
        FrameError: the frame is not a message of this protocol.
    """
    try:
        fields = json.loads(bytes(frame.body))
        return str(fields.pop("kind")), fields
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"not a message of the worker protocol: {error}") from error
