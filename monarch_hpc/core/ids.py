"""Identities: which process of which allocation is speaking, and in which of its lives."""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass

__all__ = ["Identity", "Role", "new_allocation_id", "new_incarnation", "new_run_id"]


class Role(enum.IntEnum):
    """What a process is in its allocation; part of what each side of a channel proves."""

    CONTROLLER = 1
    AGENT = 2
    PROC = 3
    TOOL = 4  # a command such as `status`, which asks and leaves


@dataclass(frozen=True, slots=True)
class Identity:
    """One life of one process of an allocation.

    Args:
        allocation: 32 hexadecimal digits, the allocation's uuid.
        role: what the process is.
        host: name of its host, for people.
        incarnation: random 64-bit number of this life; never 0.
        epoch: number of the controller's tenure; 0 where there is none.
    """

    allocation: str
    role: Role
    host: str
    incarnation: int
    epoch: int = 0


def new_incarnation() -> int:
    """Draw the number of a new life: 64 random bits, never 0, which stands for "whichever"."""
    return int.from_bytes(os.urandom(8), "little") or 1


def new_allocation_id() -> str:
    """Draw a new allocation's identity: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def new_run_id() -> str:
    """Draw a new run's identity: 8 hexadecimal digits, unique within its allocation."""
    return os.urandom(4).hex()
