"""The front of a large frame on a UCX lane, and the buffers that follow it as separate messages."""

from __future__ import annotations

from monarch_hpc.core.errors import FrameError
from monarch_hpc.transport.arrival import admit, allocate
from monarch_hpc.wire.frames import Buffer, Container, Frame, FrameHead, RefusedBuffers, buffer_at

__all__ = ["APART_BYTES", "FRONT", "Arrived", "Front", "place"]

APART_BYTES = 64 * 1024
"""Buffers from this size on are sent separately: copying a smaller one into the front costs less than a message."""

FRONT = 3
"""Stands for the container of a front, which is never refused: it says what the messages behind it belong to."""

Arrived = Buffer | MemoryError
"""A separate message, or why it could not be held."""


class Front:
    """A frame with buffers, some of which may still be arriving.

    Args:
        data: header, body and the buffers that were not sent separately.
        apart: indices of the buffers that were.
    """

    __slots__ = ("body", "head", "missing", "parts", "refused")

    def __init__(self, head: FrameHead, data: memoryview, apart: list[int]) -> None:
        self.head = head
        self.missing = apart
        self.refused = ""  # why a buffer could not be held
        at = head.size + head.body_bytes
        self.body = data[head.size : at]
        self.parts: list[Buffer] = []
        for size in head.buffer_bytes:
            if size >= APART_BYTES:
                self.parts.append(b"")
            else:
                self.parts.append(buffer_at(data, at, size))
                at += size

    @property
    def frame(self) -> Frame:
        """The frame, once no buffer is missing."""
        head = self.head
        buffers = RefusedBuffers(head.buffer_bytes, self.refused) if self.refused else self.parts
        return Frame(head.kind, head.dest, head.reply, self.body, buffers)

    def add(self, arrived: Arrived) -> None:
        """Add the next missing buffer.

        Raises:
            FrameError: it has another length than the header says.
        """
        place = self.missing.pop(0)
        if isinstance(arrived, MemoryError):
            self.refused = self.refused or str(arrived)
            self.parts = []  # their memory may be what is missing
        elif len(arrived) != self.head.buffer_bytes[place]:
            raise FrameError(f"a buffer of {len(arrived)} bytes where {self.head.buffer_bytes[place]} were due")
        elif not self.refused:
            self.parts[place] = arrived


def place(num_bytes: int, container: int) -> tuple[Buffer, memoryview]:
    """Return memory for a separate message of a container, and a writable view of it; see `_ucx.Worker`.

    Raises:
        MemoryError: there is too little.
    """
    from monarch_hpc.transport.ucx import _ucx

    if container != FRONT:
        admit(num_bytes)
    if container in (Container.BYTES, Container.BYTEARRAY):
        return allocate(num_bytes, Container(container))
    view = memoryview(_ucx.Landing(num_bytes))
    return view, view
