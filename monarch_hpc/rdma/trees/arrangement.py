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
        at, first, region = leaf.strides, 0, -1
        if shared is not None:
            region = numbers.setdefault(id(shared), len(ranges))
            if region == len(ranges):
                ranges.append(shared)
            first = at.first - shared.first
        strides = tuple.__new__(Strides, (first, at.shape, at.steps, at.item_bytes))
        form = (leaf.kind, leaf.dtype, leaf.device, leaf.form)
        entries[key] = tuple.__new__(Entry, (*form, region, strides, leaf.box, leaf.whole))
    return Arrangement(ranges, entries)


def join_ranges(ranges: list[Range]) -> tuple[list[Range], list[Range]]:
    """The ranges to register, by device and address, and that of them which holds each of *ranges*.

    Those of host memory that lie side by side are one.
    """
    joined: list[Range] = []
    holders: dict[int, Range] = {}
    for one in sorted(ranges, key=lambda one: (one.device, one.first)):
        last = joined[-1] if joined else None
        if last is not None and last.device == one.device == "cpu" and one.first - last.last <= _GAP_BYTES:
            last.last = max(last.last, one.last)
            last.leaves += one.leaves
        else:
            last = Range(one.first, one.last, one.device, list(one.leaves))
            joined.append(last)
        holders[id(one)] = last
    return joined, [holders[id(one)] for one in ranges]
