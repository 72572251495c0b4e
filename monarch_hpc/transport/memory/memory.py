"""A registered memory: the region of a process that peers with its key may read and write."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from monarch_hpc.transport.memory.key import Key

__all__ = ["Memory"]


class Memory:
    """A registered region. It keeps its buffer alive, and unmoved, until it is closed.

    Attributes:
        buffer: the registered object.
        view: its bytes; None for device memory.
        address: address of device memory; 0 for host memory.
    """

    def __init__(
        self, forget: Callable[[Memory], None], buffer: object, view: memoryview | None, address: int, key: Key
    ) -> None:
        self._forget = forget
        self._key = key
        self._close_served: Callable[[], None] | None = None
        self.buffer: object = buffer
        self.view = view
        self.address = address

    @property
    def key(self) -> bytes:
        """The key that lets another process read it, and write it where that is allowed."""
        return self._key.pack()

    @property
    def parts(self) -> Key:
        """The unpacked key."""
        return self._key

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._key.nbytes

    def attach(self, address: int, rkey: bytes, close: Callable[[], None]) -> None:
        """Let the fabric serve the memory too; keys requested from here on contain its part. For the fabric.

        Args:
            close: called once when the memory is closed.
        """
        parts = self._key
        self._key = Key(parts.id, parts.nbytes, parts.writable, parts.on_device, address, rkey)
        self._close_served = close

    def close(self) -> None:
        """Revoke access; on return no other process accesses the memory any more.

        Transfers in flight fail; data that they have moved by then stays.
        """
        self._forget(self)
        close, self._close_served = self._close_served, None
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
