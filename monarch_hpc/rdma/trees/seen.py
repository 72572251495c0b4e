"""Trees as they are found in the memory of their owner: their arrays, other values, and what others read them by.

Looking at an array costs more than comparing it with one that was looked at. So the places of arrays that are lent
already are found again, for as long as they are lent, and held: at a glance where they are the same objects, else by a
signature.
"""

from __future__ import annotations

import functools
import pickle
import weakref
from collections.abc import Hashable
from functools import cached_property
from typing import Any

from monarch_hpc.core.storage.segment import find
from monarch_hpc.rdma.buffer import RDMABuffer, lend_scattered
from monarch_hpc.rdma.trees.arrangement import Arrangement, arrange, join_ranges
from monarch_hpc.rdma.trees.host_memory import bytes_of_leaves
from monarch_hpc.rdma.trees.layout import ALIGNMENT, Entry, SharedRange, pack_places
from monarch_hpc.rdma.trees.leaf import ArrayLibrary, Leaf, find_array, library_of
from monarch_hpc.rdma.trees.tree import Placeholder, flatten, replace_all, replace_leaves
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["Lent", "SeenTree", "parse_structure"]


class SeenTree:
    """A tree as it is at the moment.

    Attributes:
        signature: equal for trees whose arrays have the same keys, and lie at the same places; None if unknown.
        skeleton: equal for trees of arrays alone with equal containers; None for any other tree.
        flat: see `flatten`.
    """

    def __init__(self, tree: object) -> None:
        self._given = tree
        self.signature: tuple[Hashable, ...] | None = None
        self.skeleton: Hashable = None
        self.flat = flat = flatten(tree)
        known = None if flat is None else _find_same(*flat)
        if known is not None and known.signature is not None:
            self.skeleton, self.signature = known.signature[0], known.signature
            return
        parts = None if flat is None else [_signature_of(value) for value in flat[0]]
        if flat is None or parts is None or None in parts:
            places = [(key, library.signature(data), *rest) for key, (library, data, *rest) in self._found.items()]
            self.signature = None if any(one[1] is None for one in places) else tuple(places)
        else:
            self.skeleton = flat[1]
            self.signature = self.skeleton, *parts

    @cached_property
    def _taken(self) -> tuple[Any, dict[str, Any], list[str]]:
        """The tree without its arrays, these by key, and the keys of what is no array."""
        found: dict[str, Any] = {}
        values: list[str] = []

        def take(key: str, value: Any) -> Any:
            one = find_array(f"tree[{key!r}]", value)
            if one is None:
                values.append(key)
                return value
            found[key] = one
            return Placeholder(key)

        return replace_leaves(self._given, take), found, values

    @property
    def _found(self) -> dict[str, Any]:
        return self._taken[1]

    @property
    def values(self) -> list[str]:
        """Keys of what is no array."""
        return [] if self.skeleton is not None else self._taken[2]

    @cached_property
    def _hollow(self) -> tuple[Any, list[str]] | None:
        """The tree with None for each array, and their keys; None if it has other values, or two with one key."""
        if self.skeleton is None:
            return None
        keys: list[str] = []
        hollow = replace_all(self._given, keys.append)
        return (hollow, keys) if len(set(keys)) == len(keys) else None

    @cached_property
    def structure(self) -> bytes:
        """The tree without its arrays, pickled."""
        if self._hollow is not None:
            return _pack(self._hollow[0], hollow=True)
        return _pack(self._taken[0], hollow=False)

    @property
    def empty(self) -> bool:
        """Whether it has no array."""
        return not self._found if self.skeleton is None else self.signature == (self.skeleton,)

    @cached_property
    def leaves(self) -> dict[str, Leaf]:
        """Its arrays, by key."""
        if self._hollow is not None:
            assert self.flat is not None
            assert self.signature is not None
            arrays, signatures = self.flat[0], self.signature[1:]
            leaves = {}
            for key, data, signature in zip(self._hollow[1], arrays, signatures, strict=True):
                library: Any = _library_of_type(type(data))  # type: ignore[arg-type]  # types are hashable
                leaves[key] = library.look_again(f"tree[{key!r}]", data, signature)
            return leaves
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
        signature: of the tree; None if unknown.
    """

    def __init__(self, arrangement: Arrangement) -> None:
        joined, joined_of = join_ranges(arrangement.ranges)
        apart = [one for one in joined if one.device == "cpu" and find(one.first, one.num_bytes, fixed=False) is None]
        super().__init__(
            [(one.first, one.num_bytes) for one in apart], [[leaf.data for leaf in one.leaves] for one in apart]
        )
        places = {id(one): (0, start) for one, start in zip(apart, self.places.starts, strict=True)}
        self.others = [one for one in joined if id(one) not in places]
        places.update({id(one): (index, 0) for index, one in enumerate(self.others, 1 if apart else 0)})
        regions = []
        for one, whole in zip(arrangement.ranges, joined_of, strict=True):
            (memory, start), first = places[id(whole)], one.first
            place = (memory, start + first - whole.first, one.last - first, first % ALIGNMENT)
            regions.append(tuple.__new__(SharedRange, place))  # as there are thousands: see `trees.arrays`
        self.entries: dict[str, Entry] = arrangement.entries
        self.regions = tuple(regions)
        self.packed = pack_places(self.entries, self.regions)
        self._structures: dict[Hashable, bytes] = {}
        self.signature: tuple[Hashable, ...] | None = None
        self._same: list[tuple[weakref.ref[Any], ArrayLibrary]] = []
        self._glances: list[object] = []

    def note(self, arrays: list[Any]) -> None:
        """Note the objects, as they are now, so that they are found again by them."""
        libraries = [_library_of_type(type(one)) for one in arrays]  # type: ignore[arg-type]  # types are hashable
        self._same = [
            (weakref.ref(one), library) for one, library in zip(arrays, libraries, strict=True) if library is not None
        ]
        self._glances = [library.glance(one) for one, (_, library) in zip(arrays, self._same, strict=True)]
        _same[_name_of(arrays)] = self

    def is_of(self, arrays: list[Any], skeleton: Hashable) -> bool:
        """Whether *arrays* are the objects that were noted, and as they were then."""
        return (
            self.signature is not None
            and all(ref() is one for one, (ref, _) in zip(arrays, self._same, strict=True))
            and self._glances == [library.glance(one) for one, (_, library) in zip(arrays, self._same, strict=True)]
            and self.signature[0] == skeleton
        )

    def structure_of(self, seen: SeenTree) -> bytes:
        """The structure of a tree of these arrays, which is not rendered again while they are lent."""
        if seen.skeleton is None:
            return seen.structure
        if seen.skeleton not in self._structures:
            self._structures[seen.skeleton] = seen.structure
        return self._structures[seen.skeleton]

    @classmethod
    def of(cls, seen: SeenTree) -> Lent:
        """The memory of a tree, which is not looked at again while it is lent already."""
        signature = seen.signature
        if signature is None:
            return cls(seen.arrangement)
        name = signature[0], signature[1:2], signature[-1], len(signature)  # whose hash is not that of thousands
        known = _lent.get(name)
        if known is None or known.signature != signature:
            known = cls(seen.arrangement)
            known.signature = signature
            if known.places and not known.others:
                _lent[name] = known
                if seen.flat is not None and seen.skeleton is not None:
                    known.note(seen.flat[0])
        return known

    def register(self, *, writable: bool) -> tuple[RDMABuffer, ...]:
        """Let others read it, and write it if *writable*."""
        lent = [lend_scattered(self, writable=writable)] if self.places else []
        others = [
            RDMABuffer(bytes_of_leaves(one.leaves, one.first, one.num_bytes), writable=writable) for one in self.others
        ]
        return (*lent, *others)


_lent: weakref.WeakValueDictionary[Hashable, Lent] = weakref.WeakValueDictionary()
"""By parts of the signature. What is registered holds it, and with it the arrays: so no other memory can be where they
are."""


_same: weakref.WeakValueDictionary[Hashable, Lent] = weakref.WeakValueDictionary()
"""Likewise, by the objects."""


def _name_of(arrays: list[Any]) -> Hashable:
    return len(arrays), id(arrays[0]), id(arrays[-1])


def _find_same(arrays: list[Any], skeleton: Hashable) -> Lent | None:
    """What is lent of a tree of the same objects."""
    known = _same.get(_name_of(arrays)) if arrays else None
    return known if known is not None and known.is_of(arrays, skeleton) else None


def _signature_of(value: Any) -> Hashable:
    """The signature of an array or tensor; None for other values."""
    library = _library_of_type(type(value))  # type: ignore[arg-type]  # types are hashable
    return None if library is None else library.signature(value)


@functools.lru_cache
def _library_of_type(kind: type) -> ArrayLibrary | None:
    """The library of arrays of exactly this type."""
    name = kind.__module__.partition(".")[0]
    return library_of(name) if name in ("numpy", "torch") and kind in library_of(name).types else None


def _pack(structure: object, *, hollow: bool) -> bytes:
    """Pickle a tree whose arrays are placeholders, or None if it is *hollow*."""
    # None is nothing to pickle, while a function is called for each placeholder.
    body, buffers = dumps(structure)
    return pickle.dumps((hollow, bytes(body), [bytes(buffer) for buffer in buffers]), 5)


def parse_structure(packed: bytes | bytearray | memoryview) -> Any:
    """Read what `SeenTree.structure` rendered: a tree whose arrays are placeholders."""
    hollow, body, buffers = pickle.loads(packed)
    structure = loads(body, buffers)
    return replace_all(structure, Placeholder) if hollow else structure
