"""Places of a memory that lies apart: ranges of addresses that are registered as one, such as the arrays of a model.

For its users it is one memory: the ranges follow each other, with gaps, and no transfer crosses one. Pure.
"""

from __future__ import annotations

import bisect
import struct
from array import array
from collections.abc import Sequence
from typing import Self

from monarch_hpc.core.dataclass import dataclass

__all__ = ["Places", "Scattered"]

_ALIGNMENT = 64
"""Ranges keep their distance from the multiples of a cache line before them, so that elements stay aligned."""

_NUM = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Places:
    """The ranges.

    Attributes:
        starts: where each begins in the memory; ascending.
        sizes: their numbers of bytes.
        addresses: where they lie in the owner's process.
        rkeys: UCX's packed key for each; empty if UCX cannot be used.
    """

    starts: array[int]
    sizes: array[int]
    addresses: array[int]
    rkeys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, ranges: Sequence[tuple[int, int]]) -> Self:
        """Lay out *ranges*, which have an address and a number of bytes each, one behind the other."""
        starts, sizes, addresses = array("Q"), array("Q"), array("Q")
        end = -1
        for address, num_bytes in ranges:
            # A byte at least lies between two of them.
            start = -(-(end + 1) // _ALIGNMENT) * _ALIGNMENT + address % _ALIGNMENT
            end = start + num_bytes
            starts.append(start)
            sizes.append(num_bytes)
            addresses.append(address)
        return cls(starts, sizes, addresses)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def num_bytes(self) -> int:
        """Size of the whole, with the gaps."""
        return self.starts[-1] + self.sizes[-1]

    def find(self, offset: int, num_bytes: int) -> int:
        """Index of the range that has these bytes; -1 if none has all of them."""
        index = bisect.bisect(self.starts, offset) - 1
        inside = index >= 0 and offset + num_bytes <= self.starts[index] + self.sizes[index]
        return index if inside else -1

    def pack(self) -> bytes:
        """Render them for a key."""
        num, rkeys = len(self.starts), self.rkeys
        lengths = array("H", map(len, rkeys)) if rkeys else array("H", bytes(2 * num))
        tables = (self.starts, self.sizes, self.addresses, lengths)
        return b"".join((_NUM.pack(num), *(table.tobytes() for table in tables), *rkeys))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Read what `pack` rendered.

        Raises:
            ValueError: *data* is something else.
        """
        num = _NUM.unpack_from(data)[0] if len(data) >= _NUM.size else 0
        at = _NUM.size
        if not num or len(data) < at + 26 * num:
            raise ValueError(f"{len(data)} bytes describe no places")
        starts, sizes, addresses = (
            array("Q", data[first : first + 8 * num]) for first in range(at, at + 24 * num, 8 * num)
        )
        at += 24 * num
        lengths = array("H", data[at : at + 2 * num])
        at += 2 * num
        if len(data) != at + sum(lengths):
            raise ValueError(f"{len(data)} bytes describe {num} places, and something else")
        rkeys = []
        for length in lengths:
            rkeys.append(data[at : at + length])
            at += length
        return cls(starts, sizes, addresses, tuple(rkeys) if any(lengths) else ())


class Scattered:
    """Ranges of this process's memory, to be registered as one.

    Args:
        held: what keeps the memory of each.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]], held: Sequence[object]) -> None:
        self.places = Places.of(ranges)
        self.held = held
