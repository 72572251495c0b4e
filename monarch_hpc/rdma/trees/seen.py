"""Trees as they are found in the memory of their owner: their arrays, other values, and what others read them by.

Looking at an array costs more than comparing it with one that was looked at. So the places of arrays that are lent
already are found again, for as long as they are lent, and held.
"""

from __future__ import annotations

import bisect
import pickle
import weakref
from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any

from monarch_hpc.core.storage.segment import find
from monarch_hpc.rdma.buffer import RDMABuffer, lend_scattered
from monarch_hpc.rdma.trees.arrangement import Arrangement, Range, arrange, join_ranges
from monarch_hpc.rdma.trees.host_memory import bytes_of_leaves
from monarch_hpc.rdma.trees.layout import ALIGNMENT, Entry, SharedRange, pack_places
from monarch_hpc.rdma.trees.leaf import Leaf, find_array
from monarch_hpc.rdma.trees.tree import Placeholder, replace_leaves, skeleton_of
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["Lent", "SeenTree", "pack_structure", "parse_structure"]


class SeenTree:
    """A tree as it is at the moment.

    Attributes:
        values: keys of what is no array.
        signature: equal for trees whose arrays have the same keys, and lie at the same places; None if unknown.
    """

    def __init__(self, tree: object) -> None:
        self._found: dict[str, Any] = {}
        self.values: list[str] = []
        signature: list[Any] = []

        def take(key: str, value: Any) -> Any:
            found = find_array(f"tree[{key!r}]", value)
            if found is None:
                self.values.append(key)
                return value
            self._found[key] = found
            library, data, box, whole = found
            signature.append((key, library.signature(data), box, whole))
            return Placeholder(key)

        self._tree = replace_leaves(tree, take)
        self.signature = None if any(one[1] is None for one in signature) else tuple(signature)

    @cached_property
    def structure(self) -> bytes:
        """The tree without its arrays, pickled."""
        return pack_structure(self._tree)

    @cached_property
    def skeleton(self) -> Hashable:
        """What is equal for trees with equal structures, if their arrays have the same keys; None if unknown."""
        return skeleton_of(self._tree)

    @property
    def empty(self) -> bool:
        """Whether it has no array."""
        return not self._found

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """Its arrays, by key."""
        return {
            key: library.look(f"tree[{key!r}]", data, box, whole)
            for key, (library, data, box, whole) in self._found.items()
        }

    @cached_property
    def arrangement(self) -> Arrangement:
        """What memory its arrays share."""
        return arrange(self.leaves)


class Lent(Scattered):
    """The memory of a tree's arrays, registered as one; but for what can be mapped, or is a device's.

    Attributes:
        entries, regions: of the layout.
        packed: what `pack_places` renders of them.
        others: ranges that are registered by themselves.
    """

    def __init__(self, arrangement: Arrangement) -> None:
        joined = join_ranges(arrangement.ranges)
        apart = [one for one in joined if one.device == "cpu" and find(one.first, one.num_bytes, fixed=False) is None]
        super().__init__(
            [(one.first, one.num_bytes) for one in apart], [[leaf.data for leaf in one.leaves] for one in apart]
        )
        places = {id(one): (0, start) for one, start in zip(apart, self.places.starts, strict=True)}
        self.others = [one for one in joined if id(one) not in places]
        places.update({id(one): (index, 0) for index, one in enumerate(self.others, 1 if apart else 0)})
        firsts = [_place(one) for one in joined]
        regions = []
        for one in arrangement.ranges:
            whole = joined[bisect.bisect(firsts, _place(one)) - 1]
            memory, start = places[id(whole)]
            regions.append(SharedRange(memory, start + one.first - whole.first, one.num_bytes, one.first % ALIGNMENT))
        self.entries: dict[str, Entry] = arrangement.entries
        self.regions = tuple(regions)
        self.packed = pack_places(self.entries, self.regions)
        self._structures: dict[Hashable, bytes] = {}

    def structure_of(self, seen: SeenTree) -> bytes:
        """The structure of a tree of these arrays, which is not rendered again while they are lent."""
        skeleton = seen.skeleton
        if skeleton is None:
            return seen.structure
        if skeleton not in self._structures:
            self._structures[skeleton] = seen.structure
        return self._structures[skeleton]

    @classmethod
    def of(cls, seen: SeenTree) -> Lent:
        """The memory of a tree, which is not looked at again while it is lent already."""
        known = None if seen.signature is None else _lent.get(seen.signature)
        if known is None:
            known = cls(seen.arrangement)
            if seen.signature is not None and known.places and not known.others:
                _lent[seen.signature] = known
        return known

    def register(self, *, writable: bool) -> tuple[RDMABuffer, ...]:
        """Let others read it, and write it if *writable*."""
        lent = [lend_scattered(self, writable=writable)] if self.places else []
        others = [
            RDMABuffer(bytes_of_leaves(one.leaves, one.first, one.num_bytes), writable=writable) for one in self.others
        ]
        return (*lent, *others)


_lent: weakref.WeakValueDictionary[Sequence[Any], Lent] = weakref.WeakValueDictionary()
"""By signature. What is registered holds it, and with it the arrays: so no other memory can be where they are."""


def _place(one: Range) -> tuple[str, int]:
    return one.device, one.first


def pack_structure(structure: object) -> bytes:
    """Pickle a tree whose arrays are slots."""
    body, buffers = dumps(structure)
    return pickle.dumps((bytes(body), [bytes(buffer) for buffer in buffers]), 5)


def parse_structure(packed: bytes | bytearray | memoryview) -> Any:
    """Read what `pack_structure` rendered."""
    return loads(*pickle.loads(packed))
