"""The key that procs of two allocations share: they call each other, and keep the keys of their allocations."""

from __future__ import annotations

import os

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.transport.secure.noise import KEY_BYTES

__all__ = ["LinkKey", "new_secret"]


@dataclass(frozen=True, slots=True)
class LinkKey:
    """One side's view of a link.

    Attributes:
        allocation: the allocation of the peers.
        name: 32 hexadecimal digits; stands in greetings in place of the allocation's id.
        key: the link's key.
    """

    allocation: str
    name: str
    key: bytes


def new_secret() -> tuple[str, bytes]:
    """A random name and key for a new link."""
    return new_allocation_id(), os.urandom(KEY_BYTES)
