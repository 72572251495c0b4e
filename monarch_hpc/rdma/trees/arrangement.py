"""Finds the memory that arrays and tensors of a tree share, so that it is registered and travels once. Pure."""

from __future__ import annotations

from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.rdma.trees.layout import Entry
from monarch_hpc.rdma.trees.leaf import Leaf
from monarch_hpc.rdma.trees.strides import Strides

__all__ = ["Arrangement", "Range", "arrange", "join_ranges"]

_GAP_BYTES = 128
"""Ranges this close are registered together: what lies between is what the allocator notes, and the rest of a cache
line. It is on the pages of its neighbours, so that it is mapped as long as they are."""


@dataclass(slots=True)
class Range:
    """Addresses that are used by leaves.

    Attributes:
        device: where they are.
        leaves: those that hold the memory.
    """

    first: int
    last: int
    device: str
    leaves: list[Leaf] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Their number."""
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The leaves of a tree in memory.

    Attributes:
        ranges: of the regions; each from the first byte that a leaf uses to the last.
        entries: by key.
    """

    ranges: list[Range]
    entries: dict[str, Entry]


def arrange(leaves: dict[str, Leaf]) -> Arrangement:
    """Find what memory *leaves* share: a region is that of one allocation."""
    found: list[Range] = []
    range_of: dict[str, Range] = {}
    device, end = "", 0
    for place, (begin, behind), key in sorted([(leaf.device, leaf.allocation, key) for key, leaf in leaves.items()]):
        leaf = leaves[key]
        first, last = leaf.span
        if first == last:
            continue
        if place == device and begin < end:
            one = found[-1]
            one.first, one.last, end = min(one.first, first), max(one.last, last), max(end, behind)
            one.leaves.append(leaf)
        else:
            one = Range(first, last, place, [leaf])
            found.append(one)
            device, end = place, behind
        range_of[key] = one
    # In the order of the tree, which addresses do not change.
    numbers: dict[int, int] = {}
    ranges: list[Range] = []
    entries = {}
    for key, leaf in leaves.items():
        shared = range_of.get(key)
        if shared is not None and id(shared) not in numbers:
            numbers[id(shared)] = len(ranges)
            ranges.append(shared)
        at = leaf.strides
        strides = Strides(0 if shared is None else at.first - shared.first, *at[1:])
        region = -1 if shared is None else numbers[id(shared)]
        entries[key] = Entry(leaf.kind, leaf.dtype, leaf.device, leaf.form, region, strides, leaf.box, leaf.whole)
    return Arrangement(ranges, entries)


def join_ranges(ranges: list[Range]) -> list[Range]:
    """The ranges to register, by device and address: those of host memory that lie side by side are one."""
    joined: list[Range] = []
    for one in sorted(ranges, key=lambda one: (one.device, one.first)):
        last = joined[-1] if joined else None
        if last is not None and last.device == one.device == "cpu" and one.first - last.last <= _GAP_BYTES:
            last.last = max(last.last, one.last)
            last.leaves += one.leaves
        else:
            joined.append(Range(one.first, one.last, one.device, list(one.leaves)))
    return joined
