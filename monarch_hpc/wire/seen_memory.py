"""Memory that objects of one value share, such as the storage of tensors: it travels once, and only what they see.

While a value is pickled, each of its objects notes the range that it sees. The range that all of them see is known only
at the end, when the buffers that pickle has put aside are cut to it. One more buffer says where each range begins.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from monarch_hpc.wire.frames import Buffer

__all__ = ["MAX_MEMORIES", "ArrivedMemory", "SeenMemories", "SeenMemory"]

MAX_MEMORIES = 1024
"""Limit on the memories of one value that travel beside its pickle; further ones are copied into it."""

_MIN_BYTES = 4096
"""Smaller memories are copied into the pickle, which is cheaper than an entry in the frame's table."""

_ALIGNMENT = 64
"""Ranges begin at a multiple of this, a cache line, so that elements stay aligned."""

_START = struct.Struct("<Q")


class SeenMemories:
    """The shared memories of a value that is being pickled."""

    def __init__(self) -> None:
        self._memories: dict[object, SeenMemory] = {}
        self._beside: list[SeenMemory] = []
        self._starts = _Starts()
        # By identity of the buffers, which live as long as this.
        self._places: dict[int, int] = {id(self._starts.buffer): -1}

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
            if one.memory.nbytes >= _MIN_BYTES and len(self._beside) < MAX_MEMORIES:
                one.starts, one.index = self._starts, len(self._beside)
                self._beside.append(one)
                self._places[id(one.buffer)] = -1
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
        starts = bytearray()
        for one in self._beside:
            first = min(one.first, one.last) // _ALIGNMENT * _ALIGNMENT
            starts += _START.pack(first)
            buffers[self._places[id(one.buffer)]] = one.memory[first : one.last]
        buffers[self._places[id(self._starts.buffer)]] = starts


class SeenMemory:
    """A shared memory, and the range of it that objects see."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.first, self.last = memory.nbytes, 0
        self.starts: _Starts | None = None  # None: it is copied into the pickle
        self.index = 0
        self.buffer = pickle.PickleBuffer(memory)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.starts is None:
            return ArrivedMemory, (None, 0, bytes(self.memory))
        return ArrivedMemory, (self.starts, self.index, self.buffer)


class _Starts:
    """The beginnings of all ranges."""

    def __init__(self) -> None:
        self.buffer = pickle.PickleBuffer(b"")

    def __reduce__(self) -> tuple[Any, ...]:
        return memoryview, (self.buffer,)


class ArrivedMemory:
    """A part of a shared memory that has arrived.

    Args:
        starts: the beginnings of all parts; None if the whole memory is here.
        index: position of this one in them.
        memory: the bytes.

    Attributes:
        start: position of the first byte in the whole memory.
    """

    def __init__(self, starts: Buffer | None, index: int, memory: Buffer) -> None:
        self.start: int = 0 if starts is None else _START.unpack_from(starts, _START.size * index)[0]
        self.memory = memory
        self._made: object = None

    def made(self, make: Callable[[Buffer], Any]) -> Any:
        """Return what *make* returns for the bytes, the same for all objects that share them."""
        if self._made is None:
            self._made = make(self.memory)
        return self._made
