"""The registered memory of one process, as its users see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from monarch_hpc.core.errors import TransportError
from monarch_hpc.transport.memory.device.copies import OpenedAllocation
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.mapping import Mapping
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.requests import Change
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["Answered", "MemoryPeer", "RemoteMemory", "Start"]

Answered = Callable[[bytes | TransportError], None]
"""Takes the answer to a request, or why there is none; on the driver."""


Start = Callable[[TransportError | None], None]
"""Starts what has waited, or ends it with the error."""

_MAPPED, _ATTACHED = "shm", "cma"
"""Names of memory that is mapped here, and of cross-memory attach, in `MemoryPeer.path`."""

_BY_FRAMES = "frames: its owner could not register it"
"""The same for memory that UCX does not take; `doctor` on the owner's host tells the limit of locked memory."""


class RemoteMemory:
    """One memory of another process, as far as it is known here.

    Attributes:
        packed, key: empty and None until the key has been fetched.
        address: where it lies in the owner's process, if this one can copy it by itself; else 0.
        mapping: the memory itself, if this process can map it.
        device_path: what carried the last transfer with memory of a GPU, here or there; empty if the fabric did.
        opened: what it is a part of, if that is memory of a GPU which this process has opened.
        waiting: what waits for the key.
        num_moving: transfers in progress.
        revoked: it is to be released once none is.
    """

    __slots__ = ("address", "device_path", "key", "mapping", "num_moving", "opened", "packed", "revoked", "waiting")

    def __init__(self) -> None:
        self.packed = b""
        self.key: Key | None = None
        self.address = 0
        self.device_path = ""
        self.opened: OpenedAllocation | None = None
        self.mapping: Mapping | None = None
        self.waiting: list[Start] = []
        self.num_moving = 0
        self.revoked = False

    @property
    def path(self) -> str:
        """What this process moves its bytes with by itself, or why frames carry them; empty if the fabric does."""
        if self.device_path:
            return self.device_path
        if self.mapping is not None:
            return _MAPPED
        if self.address:
            return _ATTACHED
        return _BY_FRAMES if self.key is not None and self.key.refused else ""


class MemoryPeer(Protocol):
    """The registered memory of one process, which may be this one; for any thread."""

    def move(self, identifier: bytes, offset: int, buffer: object, *, write: bool) -> Transfer:
        """Read memory from *offset* on until *buffer* is full, or write *buffer* there.

        Args:
            buffer: contiguous, with the buffer protocol or `__cuda_array_interface__`; the transfer's until that ends.
        """
        ...

    def open(self, identifier: bytes, answered: Answered) -> None:
        """Fetch the memory's key, unless it was fetched before; the answer may come at once."""
        ...

    def path(self, identifier: bytes) -> str:
        """What carries transfers with the memory other than the channel's fabric; empty if that does."""
        ...

    def ask_path(self, identifier: bytes, owner: int, answered: Answered) -> None:
        """Ask the process what carries transfers of a memory between it and the memory's owner.

        Args:
            owner: the owner's incarnation.
            answered: gets UTF-8 text, empty if the process has not used the memory.
        """
        ...

    def move_all(self, moves: Moves) -> Transfer:
        """Begin all *moves*; the transfer ends when all have, with the first error."""
        ...

    def drop(self, identifier: bytes, who: str, answered: Answered) -> None:
        """Have the owner revoke the memory for all; the answer is empty, and comes when no process uses it any more."""
        ...

    def change(self, identifier: bytes, change: Change, answered: Answered) -> None:
        """Change a number in the memory atomically; the answer is the number before."""
        ...
