"""A registered memory: the region of a process that peers with its key may read and write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from monarch_hpc.core.machine.buffer_address import address_of, lend
from monarch_hpc.transport.memory.device.copies import copy_between
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.places import Places
from monarch_hpc.wire.frames import Buffer

__all__ = ["Memory"]


def _nothing() -> None:
    pass


class Memory:
    """A registered region. It keeps its buffer alive, and unmoved, until it is closed.

    Attributes:
        buffer: the registered object.
        view: its bytes; None for device memory, and for memory that lies apart.
        address: of its first byte.
        on_closed: called once it is closed; for who has registered it.
        allocation: first address of the memory that it is a part of, and the one behind it; None if it is all.
    """

    def __init__(
        self,
        forget: Callable[[Memory], None],
        buffer: object,
        view: memoryview | None,
        address: int,
        key: Key,
        allocation: tuple[int, int] | None = None,
    ) -> None:
        self._forget = forget
        self._key = key
        self._close_served: Callable[[], None] | None = None
        self.on_closed: Callable[[], None] = _nothing
        self.buffer: object = buffer
        self.view = view
        self.address = address
        self.allocation = allocation

    @property
    def key(self) -> bytes:
        """The key that lets another process read it, and write it where that is allowed."""
        return self._key.pack()

    @property
    def parts(self) -> Key:
        """The unpacked key."""
        return self._key

    @property
    def first_address(self) -> int:
        """Where it lies in this process, or on its device."""
        return self.address if self.view is None else address_of(self.view)

    def address_of(self, offset: int) -> int:
        """Address of the byte at *offset*, which there is."""
        return self._key.locate(offset, self.first_address)

    @property
    def nbytes(self) -> int:
        """Size of the memory."""
        return self._key.nbytes

    @property
    def lent_bytes(self) -> int:
        """Size of the memory without the gaps in what lies apart."""
        places = self._key.places
        return self._key.nbytes if places is None else sum(places.sizes)

    def part(self, offset: int, num_bytes: int) -> memoryview:
        """These bytes of host memory, which there are; the view keeps the memory."""
        if self.view is not None:
            return self.view[offset : offset + num_bytes]
        return lend(self._key.locate(offset, 0), num_bytes, self.buffer)

    def read(self, offset: int, num_bytes: int) -> memoryview:
        """These bytes, which there are: the memory itself, or a copy of what is on a device.

        Raises:
            OSError: the device's driver refuses it.
        """
        if not self._key.on_device:
            return self.part(offset, num_bytes)
        copied = bytearray(num_bytes)
        copy_between(address_of(copied), self.address + offset, num_bytes, self.address)
        return memoryview(copied)

    def write(self, offset: int, data: Buffer) -> None:
        """Write *data*, which fits, from *offset* on; errors as of `read`."""
        if not self._key.on_device:
            self.part(offset, len(data))[:] = data
        elif len(data):
            copy_between(self.address + offset, address_of(data), len(data), self.address)

    def target(self, offset: int, num_bytes: int) -> Any:
        """These bytes, which there are, of a host or of a device, as a target of transfers."""
        buffer: Any = self.buffer
        return buffer[offset : offset + num_bytes] if self._key.on_device else self.part(offset, num_bytes)

    def attach(self, address: int, rkey: bytes, close: Callable[[], None]) -> None:
        """Let the fabric serve the memory too; keys requested from here on contain its part. For the fabric.

        Args:
            close: called once when the memory is closed.
        """
        key = self._key
        self._key = replace(key, address=address, rkey=rkey)
        self._close_served = close

    def attach_places(self, rkeys: tuple[bytes, ...], close: Callable[[], None]) -> None:
        """As `attach`, with a packed key for each range of a memory that lies apart."""
        places = self._key.places
        assert places is not None, "the memory lies apart"
        apart = Places(places.starts, places.sizes, places.addresses, rkeys)
        self._key = replace(self._key, places=apart)
        self._close_served = close

    def refuse(self) -> None:
        """Note that the fabric cannot serve the memory, so that frames carry it. For the fabric."""
        self._key = replace(self._key, refused=True)

    def close(self) -> None:
        """Revoke access; on return no other process accesses the memory any more.

        Transfers in flight fail; data that they have moved by then stays.
        """
        self._forget(self)
        close, self._close_served = self._close_served, None
        if close is not None:
            close()
        on_closed, self.on_closed = self.on_closed, _nothing
        on_closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
