"""Keys of registered memory, and the spans that operations name. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from monarch_hpc.core.errors import FrameError, MemoryAccessError
from monarch_hpc.wire.frames import Buffer

__all__ = ["ID_BYTES", "Key", "device_span", "host_view", "pack_span", "parse_span"]

ID_BYTES = 16
"""Size of an identifier: too large to guess."""

_KEY = struct.Struct(f"<{ID_BYTES}sQBQ")  # id, nbytes, flags, address; then UCX's packed key
_SPAN = struct.Struct(f"<{ID_BYTES}sQQ")  # id, offset, nbytes
_WRITABLE = 1
_ON_DEVICE = 2


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a registered memory; `pack` renders it for messages.

    Attributes:
        nbytes: size of the memory.
        on_device: whether it is device memory, which only UCX reaches.
        address: address in the owner's process, for UCX; 0 if UCX cannot be used.
        rkey: UCX's packed key; empty if UCX cannot be used.
    """

    id: bytes
    nbytes: int
    writable: bool
    on_device: bool = False
    address: int = 0
    rkey: bytes = b""

    def pack(self) -> bytes:
        """Render the key as bytes."""
        flags = (_WRITABLE if self.writable else 0) | (_ON_DEVICE if self.on_device else 0)
        return _KEY.pack(self.id, self.nbytes, flags, self.address) + self.rkey

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what `pack` rendered.

        Raises:
            MemoryAccessError: *data* is not a key.
        """
        if len(data) < _KEY.size:
            raise MemoryAccessError("here", f"{len(data)} bytes are not a memory key")
        identifier, nbytes, flags, address = _KEY.unpack_from(data)
        return cls(identifier, nbytes, bool(flags & _WRITABLE), bool(flags & _ON_DEVICE), address, data[_KEY.size :])

    def problem(self, offset: int, nbytes: int, *, write: bool) -> str:
        """Why *nbytes* bytes at *offset* cannot be read, or written if *write*; empty if they can."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            return f"bytes {offset} to {offset + nbytes} of a memory of {self.nbytes} bytes"
        if write and not self.writable:
            return "the memory was registered to be read only"
        return ""

    def check(self, where: str, offset: int, nbytes: int, *, write: bool) -> None:
        """Like `problem`, but raise.

        Args:
            where: the process that owns the memory, for the error.

        Raises:
            MemoryAccessError: the bytes cannot be read or written.
        """
        problem = self.problem(offset, nbytes, write=write)
        if problem:
            raise MemoryAccessError(where, problem)


def pack_span(identifier: bytes, offset: int, nbytes: int) -> bytes:
    """Render the body of a GET or PUT frame."""
    return _SPAN.pack(identifier, offset, nbytes)


def parse_span(body: Buffer) -> tuple[bytes, int, int]:
    """Read the identifier, offset and number of bytes from the body of a GET or PUT frame.

    Raises:
        FrameError: *body* has another size.
    """
    if len(body) != _SPAN.size:
        raise FrameError(f"a memory request of {len(body)} bytes, not {_SPAN.size}")
    identifier, offset, nbytes = _SPAN.unpack(body)
    return identifier, offset, nbytes


def host_view(buffer: object, *, writable: bool) -> memoryview:
    """The bytes of *buffer*, an object with the buffer protocol.

    Raises:
        TypeError: it has no buffer protocol, as device memory.
        ValueError: it is not contiguous, or is read-only although *writable* was asked for.
    """
    view = memoryview(buffer)  # type: ignore[arg-type]
    if not view.c_contiguous:
        raise ValueError(f"the buffer is not contiguous: shape {view.shape}, strides {view.strides}")
    if writable and view.readonly:
        raise ValueError(f"the buffer cannot be written to: {type(buffer).__name__}")
    # A view with a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(bytearray())


def device_span(buffer: object) -> tuple[int, int, bool] | None:
    """Address, number of bytes and writability of an object with `__cuda_array_interface__`; None for other objects.

    Raises:
        ValueError: it is not contiguous.
    """
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is None:
        return None
    address, readonly = interface["data"]
    shape: tuple[int, ...] = interface["shape"]
    strides: tuple[int, ...] | None = interface.get("strides")
    step = int(interface["typestr"][2:])
    nbytes = step
    for size in shape:
        nbytes *= size
    if strides is not None and nbytes:
        for size, stride in zip(reversed(shape), reversed(strides), strict=True):
            if size > 1 and stride != step:
                raise ValueError(f"the device's memory is not contiguous: shape {shape}, strides {strides}")
            step *= size
    return address, nbytes, not readonly
