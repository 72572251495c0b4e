"""The lines of JSON between a host's runner and its fork servers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from monarch_hpc.core.dataclass import dataclass

__all__ = ["READY", "TaskOrder", "decode_order", "encode_order"]

READY = "ready"
"""The first line of a fork server: it can fork tasks."""


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """The order to start a task.

    Args:
        key: names the task in the answer.
        folder: submitit's folder.
        umask: its mask for the modes of new files.
        environment: variables of the task alone.
        out: the file of its standard output.
        err: the file of its error stream; equal to *out* if they are one.
    """

    key: str
    folder: str
    umask: int
    environment: Mapping[str, str]
    out: str
    err: str


def encode_order(order: TaskOrder) -> bytes:
    """Encode an order as a line."""
    return json.dumps(dataclasses.asdict(order)).encode() + b"\n"


def decode_order(line: bytes) -> TaskOrder:
    """Read a line of `encode_order`."""
    return TaskOrder(**json.loads(line))
