"""Memory that objects of one value share, such as the storage of tensors: it travels once, and only what they see.

While a value is pickled, each of its objects notes the range that it sees. The range that all of them see is known only
at the end, when the buffers that pickle has put aside are cut to it. One more buffer lists the ranges.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from monarch_hpc.wire.frames import Buffer

__all__ = ["MAX_MEMORIES", "ArrivedMemory", "SeenMemories", "SeenMemory"]

MAX_MEMORIES = 1024
"""Limit on the memories of one value that are buffers of their own; what is seen of further ones is copied into one
buffer for all of them."""

_MIN_BYTES = 4096
"""Smaller memories are copied into the pickle, which is cheaper than an entry in the frame's table."""

_ALIGNMENT = 64
"""Ranges begin at a multiple of this, a cache line, so that elements stay aligned."""

_RANGE = struct.Struct("<QQQ")  # where it begins in the whole memory, and in its buffer; its length


class SeenMemories:
    """The shared memories of a value that is being pickled."""

    def __init__(self) -> None:
        self._memories: dict[object, SeenMemory] = {}
        self._beside: list[SeenMemory] = []
        self._ranges = _SharedBuffer()
        self._joint = _SharedBuffer()
        # By identity of the buffers, which live as long as this.
        self._places: dict[int, int] = {id(self._ranges.buffer): -1, id(self._joint.buffer): -1}

    def see(self, key: object, memory: Callable[[], memoryview], first: int, last: int) -> SeenMemory:
        """Note that an object sees the bytes from *first* up to, but not including, *last* of a memory.

        Args:
            key: identity of the memory.
            memory: returns all of it; called for its first object.

        Returns:
            What stands for the memory in the pickle of the object; it is read as an `ArrivedMemory`.
        """
        one = self._memories.get(key)
        if one is None:
            one = self._memories[key] = SeenMemory(memory())
            if one.memory.nbytes >= _MIN_BYTES:
                one.ranges, one.index = self._ranges, len(self._beside)
                if one.index >= MAX_MEMORIES:
                    one.buffer = self._joint
                else:
                    self._places[id(one.buffer)] = -1
                self._beside.append(one)
        if last > first:
            one.first, one.last = min(one.first, first), max(one.last, last)
        return one

    def takes(self, buffer: pickle.PickleBuffer, place: int) -> bool:
        """Tell whether a buffer that pickle offers is one of these; `fill` needs *place*, where it will stand."""
        if id(buffer) not in self._places:
            return False
        self._places[id(buffer)] = place
        return True

    def fill(self, buffers: list[Buffer]) -> None:
        """Set the buffers that have been taken, once the value is pickled."""
        if not self._beside:
            return
        ranges, joint, joint_bytes = bytearray(), list[memoryview](), 0
        for one in self._beside:
            first = min(one.first, one.last) // _ALIGNMENT * _ALIGNMENT
            seen = one.memory[first : one.last]
            if one.buffer is self._joint:
                ranges += _RANGE.pack(first, joint_bytes, seen.nbytes)
                joint.append(seen)
                joint_bytes += -(-seen.nbytes // _ALIGNMENT) * _ALIGNMENT
            else:
                ranges += _RANGE.pack(first, 0, seen.nbytes)
                buffers[self._places[id(one.buffer)]] = seen
        buffers[self._places[id(self._ranges.buffer)]] = memoryview(ranges)
        if joint:
            buffers[self._places[id(self._joint.buffer)]] = memoryview(_join(joint, joint_bytes))


def _join(parts: list[memoryview], num_bytes: int) -> bytearray:
    joined, at = bytearray(num_bytes), 0
    for part in parts:
        joined[at : at + part.nbytes] = part
        at += -(-part.nbytes // _ALIGNMENT) * _ALIGNMENT
    return joined


class SeenMemory:
    """A shared memory, and the range of it that objects see."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.first, self.last = memory.nbytes, 0
        self.ranges: _SharedBuffer | None = None  # None: it is copied into the pickle
        self.index = 0
        self.buffer: pickle.PickleBuffer | _SharedBuffer = pickle.PickleBuffer(memory)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.ranges is None:
            return ArrivedMemory, (None, 0, bytes(self.memory))
        return ArrivedMemory, (self.ranges, self.index, self.buffer)


class _SharedBuffer:
    """A buffer for several memories: the ranges of all, or the contents of the joined ones."""

    def __init__(self) -> None:
        self.buffer = pickle.PickleBuffer(b"")

    def __reduce__(self) -> tuple[Any, ...]:
        return memoryview, (self.buffer,)


class ArrivedMemory:
    """A part of a shared memory that has arrived.

    Args:
        ranges: the ranges of all parts; None if the whole memory is here.
        index: position of this one in them.
        buffer: the bytes, perhaps among others.

    Attributes:
        start: position of the first byte in the whole memory.
    """

    def __init__(self, ranges: Buffer | None, index: int, buffer: Buffer) -> None:
        self.start = 0
        self.memory = buffer
        if ranges is not None:
            self.start, at, size = _RANGE.unpack_from(ranges, _RANGE.size * index)
            self.memory = memoryview(buffer)[at : at + size]
        self._made: object = None

    def made(self, make: Callable[[Buffer], Any]) -> Any:
        """Return what *make* returns for the bytes, the same for all objects that share them."""
        if self._made is None:
            self._made = make(self.memory)
        return self._made
