"""The layout of a tree's elements in memory, as readers get it: once for all their reads. Pure."""

from __future__ import annotations

import io
import pickle
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.rdma.trees.boxes import Box
from monarch_hpc.rdma.trees.strides import Strides

if TYPE_CHECKING:
    from monarch_hpc.rdma.buffer import RDMABuffer

__all__ = ["ALIGNMENT", "Entry", "Layout", "Root", "SharedRange", "in_words", "pack_places", "selected_keys"]

ALIGNMENT = 64
"""A cache line, to which torch aligns its memory: places keep their distance from its multiples, so that elements which
were aligned stay so."""

_MOST_NAMED = 5
"""Number of keys that an error names."""


class SharedRange(NamedTuple):
    """Memory that entries share. Its first byte belongs to one, as does its last.

    Attributes:
        memory: index of the registered memory that it is in.
        start: where it begins there.
        lead: its distance from the multiple of `ALIGNMENT` before it.
    """

    memory: int
    start: int
    num_bytes: int
    lead: int


class Entry(NamedTuple):
    """An array or tensor of the tree.

    Attributes:
        region: index of its region; -1 if it has no elements.
        strides: where its elements lie in the region.
        kind, dtype, device, form, box, whole: see `rdma.trees.leaf.Leaf`.
    """

    kind: str
    dtype: str
    device: str
    form: str
    region: int
    strides: Strides
    box: Box
    whole: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """The description of a state that readers need.

    Attributes:
        entries: by key, in the order of the tree.
        values: keys of the values that are no arrays.
        copies: the registered memories of each copy; for a state without copies, of the tree itself.
        versioned: whether they are copies.
        structure: the tree without its arrays, pickled; empty if each version has its own.
        pins: how many readers want each copy to be kept, a number each; None for a state without copies.
    """

    entries: dict[str, Entry]
    values: tuple[str, ...]
    regions: tuple[SharedRange, ...]
    copies: tuple[tuple[RDMABuffer, ...], ...]
    versioned: bool
    structure: bytes
    pins: RDMABuffer | None

    @property
    def num_bytes(self) -> int:
        """Size of one copy."""
        return sum(region.num_bytes for region in self.regions)

    @property
    def memories(self) -> list[RDMABuffer]:
        """All registered memories."""
        return [memory for copy in self.copies for memory in copy] + ([self.pins] if self.pins is not None else [])


_HEAD = struct.Struct("<qqq")  # newest version, number of copies, room for each structure
_MARK = struct.Struct("<qq")  # of a copy: version, or minus the one that is being written; length of its structure


@dataclass(frozen=True, slots=True)
class Root:
    """The memory that a handle refers to: the marks of versions, the structures of the copies, and the layout.

    Attributes:
        room: bytes for the structure of each version.
    """

    num_copies: int
    room: int

    @property
    def head_bytes(self) -> int:
        """Size of the part that changes with each version, without the structures."""
        return _HEAD.size + self.num_copies * _MARK.size

    @property
    def layout_start(self) -> int:
        """Where the layout begins."""
        return self.head_bytes + self.num_copies * self.room

    def structure_start(self, copy: int) -> int:
        """Where the structure of a copy begins."""
        return self.head_bytes + copy * self.room

    def pack(self, layout: Layout, places: bytes) -> bytearray:
        """Render it, before the first version; *places* is what `pack_places` has rendered of it."""
        head = _HEAD.pack(0, self.num_copies, self.room)
        rest = (layout.values, layout.copies, layout.versioned, layout.structure, layout.pins)
        return bytearray(head) + bytes(self.layout_start - len(head)) + places + pickle.dumps(rest, 5)

    @classmethod
    def parse(cls, data: bytes | bytearray) -> tuple[Root, Layout]:
        """Read what `pack` rendered."""
        _newest, num_copies, room = _HEAD.unpack_from(data)
        root = cls(num_copies, room)
        stream = io.BytesIO(memoryview(data)[root.layout_start :])
        entries, regions = _parse_places(*pickle.load(stream))
        values, copies, versioned, structure, pins = pickle.load(stream)
        return root, Layout(entries, values, regions, copies, versioned, structure, pins)

    def newest(self, head: bytes | bytearray) -> int:
        """The last version that was published."""
        newest: int = _HEAD.unpack_from(head)[0]
        return newest

    def mark(self, head: bytes | bytearray, version: int) -> tuple[int, int]:
        """What the copy for *version* holds, and the length of its structure."""
        held, length = _MARK.unpack_from(head, _HEAD.size + version % self.num_copies * _MARK.size)
        return held, length

    def mark_place(self, version: int) -> int:
        """Index of the mark of *version* among the 64-bit words; the structure's length is the next."""
        return (_HEAD.size + version % self.num_copies * _MARK.size) // 8


def pack_places(entries: dict[str, Entry], regions: tuple[SharedRange, ...]) -> bytes:
    """Render the part of a layout which is the same for all states of the same arrays."""
    # As plain tuples, which pickle several times as fast as objects: there are thousands.
    rows = [
        (key, kind, dtype, device, form, region, *strides, *box, whole)
        for key, (kind, dtype, device, form, region, strides, box, whole) in entries.items()
    ]
    return pickle.dumps((rows, [tuple(one) for one in regions]), 5)


def _parse_places(
    rows: list[tuple[Any, ...]], ranges: list[tuple[int, int, int, int]]
) -> tuple[dict[str, Entry], tuple[SharedRange, ...]]:
    entries = {
        key: Entry(kind, dtype, device, form, region, Strides(*places), Box(offsets, sizes), whole)
        for key, kind, dtype, device, form, region, *places, offsets, sizes, whole in rows
    }
    return entries, tuple(SharedRange(*one) for one in ranges)


def selected_keys(known: list[str], asked: list[str]) -> list[str]:
    """The keys that *asked* names, each itself or a container of it; in their own order.

    Raises:
        ValueError: one names nothing.
    """
    found = set()
    for name in asked:
        hits = [key for key in known if key == name or key.startswith(f"{name}.") or not name]
        if not hits:
            raise ValueError(f"the state has no {name!r}; it has {in_words(known)}")
        found.update(hits)
    return [key for key in known if key in found]


def in_words(keys: list[str]) -> str:
    """The first few keys, in words."""
    more = f" and {len(keys) - _MOST_NAMED} more" if len(keys) > _MOST_NAMED else ""
    return (", ".join(map(repr, keys[:_MOST_NAMED])) or "nothing") + more
