"""What a waiting worker and the program that attaches to it say to each other: small JSON documents in sealed frames.

program                                    worker
engage  allocation, rank, key, config  ->
                                       <-  busy      another program has it
                                       <-  head      addresses, from rank 0
head    addresses, to the others       ->
                                       <-  ready     what the head wrote, from rank 0
                                       <-  failed    why its agent ended
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
"""In the place of an allocation, in greetings between programs and workers."""


def render_message(kind: str, **fields: object) -> Frame:
    """One message."""
    return Frame(Kind.CONTROL, body=json.dumps({"kind": kind, **fields}).encode())


def parse_message(frame: Frame) -> tuple[str, dict[str, Any]]:
    """Kind and fields of a message.

    Raises:
        FrameError: it is none.
    """
    try:
        fields = json.loads(bytes(frame.body))
        return str(fields.pop("kind")), fields
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"no word between program and worker: {error}") from error
