"""Handles by which processes of one host open each other's GPU memory."""

from __future__ import annotations

import struct
from typing import Self

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.cuda import HANDLE_BYTES, load_cuda
from monarch_hpc.core.storage.segment import place_digest

__all__ = ["DEVICE_HANDLE_BYTES", "DeviceHandle", "handle_of"]

_HANDLE = struct.Struct(f"<8s{HANDLE_BYTES}sQ")  # place, handle, offset
DEVICE_HANDLE_BYTES = _HANDLE.size


@dataclass(frozen=True, slots=True)
class DeviceHandle:
    """Where a registered memory of a GPU is found.

    Attributes:
        place: a digest of `core.machine.place.read_place` of its owner.
        handle: of the allocation that it is a part of; zeros if that has none.
        offset: where it begins there.
    """

    place: bytes
    handle: bytes
    offset: int

    def pack(self) -> bytes:
        """Render it, in `DEVICE_HANDLE_BYTES`."""
        return _HANDLE.pack(self.place, self.handle, self.offset)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what `pack` rendered."""
        return cls(*_HANDLE.unpack(data))

    @property
    def near(self) -> bool:
        """Whether it lies on this host, with a process of this user in the same PID namespace."""
        return bool(self.place.strip(b"\0")) and self.place == place_digest()

    @property
    def opens(self) -> bool:
        """Whether this process can open it."""
        return self.near and bool(self.handle.strip(b"\0"))


def handle_of(address: int) -> DeviceHandle:
    """The handle of the memory at *address* of this process."""
    cuda = load_cuda()
    handle, offset = bytes(HANDLE_BYTES), 0
    if cuda is not None:
        try:
            handle, offset = cuda.share(address)
        except OSError:  # such as memory of expandable segments: it is staged
            pass
    return DeviceHandle(place_digest(), handle, offset)
