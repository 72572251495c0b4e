"""Keys of registered memory, and the spans that operations name. Pure."""

from __future__ import annotations

import struct
from typing import Self

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError, MemoryAccessError
from monarch_hpc.core.storage.segment import SPAN_BYTES
from monarch_hpc.transport.memory.device.handle import DEVICE_HANDLE_BYTES
from monarch_hpc.transport.memory.places import Places
from monarch_hpc.wire.frames import Buffer

__all__ = ["ID_BYTES", "Key", "device_span", "host_view", "num_bytes_of", "pack_span", "parse_span"]

ID_BYTES = 16
"""Size of an identifier: too large to guess."""

_KEY = struct.Struct(f"<{ID_BYTES}sQBQ")  # id, nbytes, flags, address; then UCX's packed key
_SPAN = struct.Struct(f"<{ID_BYTES}sQQ")  # id, offset, nbytes
_WRITABLE = 1
_ON_DEVICE = 2
_SHAREABLE = 4
_APART = 8
_REFUSED = 16
_HANDLE = 32


@dataclass(frozen=True, slots=True)
class Key:
    """The key of a registered memory; `pack` renders it for messages.

    Attributes:
        nbytes: size of the memory.
        on_device: whether it is memory of a GPU.
        address: address in the owner's process, for UCX; 0 if UCX cannot be used.
        rkey: UCX's packed key; empty if UCX cannot be used.
        span: where processes of the same host can map it, see `core.storage.segment.Span`; empty if they cannot.
        places: the ranges of a memory that lies apart, each with its address and packed key; None for other memory.
        refused: whether the owner's UCX could not register it, so that frames carry it.
        handle: by which processes of the same host open memory of a GPU, see `transport.memory.device.handle`; else
            empty.
    """

    id: bytes
    nbytes: int
    writable: bool
    on_device: bool = False
    address: int = 0
    rkey: bytes = b""
    span: bytes = b""
    places: Places | None = None
    refused: bool = False
    handle: bytes = b""

    def pack(self) -> bytes:
        """Render the key as bytes."""
        flags = (_WRITABLE if self.writable else 0) | (_ON_DEVICE if self.on_device else 0)
        flags |= (_SHAREABLE if self.span else 0) | (0 if self.places is None else _APART)
        flags |= (_REFUSED if self.refused else 0) | (_HANDLE if self.handle else 0)
        rest = self.rkey if self.places is None else self.places.pack()
        return _KEY.pack(self.id, self.nbytes, flags, self.address) + self.span + self.handle + rest

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what `pack` rendered.

        Raises:
            MemoryAccessError: *data* is not a key.
        """
        if len(data) < _KEY.size:
            raise MemoryAccessError("here", f"{len(data)} bytes are not a memory key")
        identifier, nbytes, flags, address = _KEY.unpack_from(data)
        span_end = _KEY.size + (SPAN_BYTES if flags & _SHAREABLE else 0)
        rest = span_end + (DEVICE_HANDLE_BYTES if flags & _HANDLE else 0)
        if len(data) < rest:
            raise MemoryAccessError("here", f"{len(data)} bytes are not a memory key")
        span, handle, rkey = data[_KEY.size : span_end], data[span_end:rest], data[rest:]
        places: Places | None = None
        if flags & _APART:
            try:
                places, rkey = Places.parse(rkey), b""
            except ValueError as error:
                raise MemoryAccessError("here", f"it is not a memory key: {error}") from None
        writable, on_device, refused = (bool(flags & flag) for flag in (_WRITABLE, _ON_DEVICE, _REFUSED))
        return cls(identifier, nbytes, writable, on_device, address, rkey, span, places, refused, handle)

    def problem(self, offset: int, nbytes: int, *, write: bool) -> str:
        """Why *nbytes* bytes at *offset* cannot be read, or written if *write*; empty if they can."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            return f"bytes {offset} to {offset + nbytes} of a memory of {self.nbytes} bytes"
        if self.places is not None and nbytes and self.places.find(offset, nbytes) < 0:
            return f"bytes {offset} to {offset + nbytes} are not all of one array of the tree"
        if write and not self.writable:
            return "the memory was registered to be read only"
        return ""

    def locate(self, offset: int, first: int) -> int:
        """Address of the byte at *offset*, which there is, of a memory whose first byte has the address *first*."""
        places = self.places
        if places is None:
            return first + offset
        index = max(places.find(offset, 0), 0)
        return places.addresses[index] + offset - places.starts[index]

    def remote(self, offset: int) -> tuple[int, bytes, int]:
        """Address and packed key of the byte at *offset*, for UCX, and which of several packed keys it is."""
        places = self.places
        if places is None:
            return self.address + offset, self.rkey, 0
        index = max(places.find(offset, 0), 0)
        return self.locate(offset, 0), places.rkeys[index] if places.rkeys else b"", index

    def ends(self, first: int) -> list[int]:
        """Addresses of the first and the last byte of each of its ranges, if its first byte is at *first*."""
        places = self.places
        if places is None:
            return [first, first + self.nbytes - 1] if self.nbytes else []
        return [
            end
            for address, size in zip(places.addresses, places.sizes, strict=True)
            if size
            for end in (address, address + size - 1)
        ]

    def check(self, where: str, offset: int, nbytes: int, *, write: bool) -> None:
        """Like `problem`, but raise.

        Args:
            where: the process that owns the memory, for the error.

        Raises:
            MemoryAccessError: the bytes cannot be read or written.
        """
        error = self.error(where, offset, nbytes, write=write)
        if error is not None:
            raise error

    def error(self, where: str, offset: int, nbytes: int, *, write: bool) -> MemoryAccessError | None:
        """Like `check`, but return the error."""
        problem = self.problem(offset, nbytes, write=write)
        return MemoryAccessError(where, problem) if problem else None


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


def num_bytes_of(buffer: object) -> int:
    """Size of what `host_view` or `device_span` take; errors as theirs."""
    span = device_span(buffer)
    return host_view(buffer, writable=False).nbytes if span is None else span[1]
