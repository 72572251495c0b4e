"""The reader's side of states: their layouts, and whole versions of what several owners have together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from monarch_hpc.core.recent import Recent
from monarch_hpc.rdma.action import RDMAAction
from monarch_hpc.rdma.buffer import RDMABuffer
from monarch_hpc.rdma.trees.layout import Entry, Layout, Root, selected_keys
from monarch_hpc.rdma.trees.leaf import Leaf, library_of, look_at_leaf
from monarch_hpc.rdma.trees.plan import Plan, check_targets
from monarch_hpc.rdma.trees.reading import Reading
from monarch_hpc.rdma.trees.seen import parse_structure
from monarch_hpc.rdma.trees.strides import Strides, dense_strides
from monarch_hpc.rdma.trees.tree import Placeholder, join_trees, named_leaves, replace_leaves, set_values

__all__ = ["Reader"]

_KEEP = 64
"""Number of states whose layouts a process keeps."""

_LOOKS = 8
"""Looks at the owners' marks while they keep copies: 0.1 s, after which other copies may have to be kept."""

_layouts: Recent[bytes, tuple[Root, Layout]] = Recent(_KEEP)


class Reader:
    """Reads from the states with *roots*, which make one tree together; in the thread of *steps*."""

    def __init__(self, steps: Reading[Any], roots: Sequence[RDMABuffer]) -> None:
        self._steps = steps
        self._roots = roots
        known = self.fetch(steps, roots)
        self._shapes = [shape for shape, _layout in known]
        self.layouts = [layout for _shape, layout in known]
        if len({layout.versioned for layout in self.layouts}) > 1:
            raise ValueError(
                "of the joined states some have versions and some have not: make all with copies=, or none"
            )

    @staticmethod
    def fetch(steps: Reading[Any], roots: Sequence[RDMABuffer]) -> list[tuple[Root, Layout]]:
        """The layouts of states, which are kept for later readers."""
        unknown = [root for root in roots if _layouts.get(root.identifier) is None]
        fetched = {root.identifier: bytearray(root.size()) for root in unknown}
        action = RDMAAction()
        for root in {root.identifier: root for root in unknown}.values():
            action.read_remote(fetched[root.identifier], root)
        steps.wait(lambda left_s: action.submit(timeout=left_s))
        return [
            _layouts.get(root.identifier) or _layouts.setdefault(root.identifier, Root.parse(fetched[root.identifier]))
            for root in roots
        ]

    @property
    def _versioned(self) -> bool:
        return self.layouts[0].versioned

    def _do(self, reads: Sequence[tuple[object, RDMABuffer]]) -> None:
        action = RDMAAction()
        for target, source in reads:
            action.read_remote(target, source)
        self._steps.wait(lambda left_s: action.submit(timeout=left_s))

    # ---- trees ----

    def read_into(self, tree: object, asked: Sequence[str] | None) -> int:
        """Read into the arrays of *tree*; return the version."""
        here = named_leaves(tree)
        keys = self._select(asked)
        check_targets(self.layouts, here, keys, all_of_them=asked is None)
        targets, values = {}, []
        for key in keys:
            leaf = look_at_leaf(f"tree[{key!r}]", here[key])
            is_array = any(key in layout.entries for layout in self.layouts)
            if is_array is not (leaf is not None):
                there = "an array" if is_array else "no array"
                raise TypeError(f"{key!r} is {there} in the state, and a {type(here[key]).__name__} here")
            if leaf is None:
                values.append(key)
            else:
                targets[key] = leaf
        version, structures = self._read(targets, with_structures=bool(values))
        if values:
            known = _values(structures)
            set_values(tree, {key: known[key] for key in values})
        return version

    def read(self, asked: Sequence[str] | None) -> Any:
        """Read into new memory; return the tree, or what was asked for by key."""
        keys = self._select(asked)
        made = self._new({key for key in keys if any(key in layout.entries for layout in self.layouts)})
        leaves = {key: look_at_leaf(key, value) for key, value in made.items()}
        _version, structures = self._read({key: leaf for key, leaf in leaves.items() if leaf}, with_structures=True)
        if asked is not None:
            values = _values(structures)
            return {key: made[key] if key in made else values[key] for key in keys}
        whole = structures[0]
        for other in structures[1:]:
            whole = join_trees(whole, other)
        return replace_leaves(whole, lambda _key, value: made[value.key] if isinstance(value, Placeholder) else value)

    def _select(self, asked: Sequence[str] | None) -> list[str]:
        known = list(dict.fromkeys(key for layout in self.layouts for key in (*layout.entries, *layout.values)))
        return known if asked is None else selected_keys(known, list(asked))

    def _new(self, keys: set[str]) -> dict[str, Any]:
        """New arrays; those that share memory at their owner do so here."""
        made: dict[str, Any] = {}
        for layout in self.layouts:
            chosen = {key: entry for key, entry in layout.entries.items() if key in keys and key not in made}
            memories: dict[int, Any] = {}
            same: dict[Entry, Any] = {}
            for key, entry in chosen.items():
                library, strides = library_of(entry.kind), entry.strides
                if entry.box.sizes != entry.whole or entry.region < 0:
                    item = library.item_bytes(entry.dtype)
                    strides = Strides(0, entry.whole, dense_strides(entry.whole, item), item)
                    memory = library.memory(strides.span[1], "cpu")
                elif entry in same:
                    made[key] = same[entry]
                    continue
                else:
                    region = layout.regions[entry.region]
                    if entry.region not in memories:
                        memories[entry.region] = library.memory(region.lead + region.num_bytes, "cpu")
                    memory = memories[entry.region]
                    shape, steps = strides.shape, strides.steps
                    strides = Strides(region.lead + strides.first, shape, steps, strides.item_bytes)
                made[key] = same[entry] = library.make(memory, entry.dtype, strides, entry.form)
        return made

    # ---- versions ----

    def newest(self) -> int:
        """The last version that all have published."""
        if not self._versioned:
            return 0
        return self._common(self._heads())

    def _heads(self) -> list[bytearray]:
        heads = [bytearray(shape.head_bytes) for shape in self._shapes]
        self._do([(head, root[: len(head)]) for head, root in zip(heads, self._roots, strict=True)])
        return heads

    def _holds(self, heads: list[bytearray], version: int) -> bool:
        """Whether all have a whole copy of *version*."""
        pairs = zip(self._shapes, heads, strict=True)
        return version > 0 and all(shape.mark(head, version)[0] == version for shape, head in pairs)

    def _read(self, targets: dict[str, Leaf], *, with_structures: bool) -> tuple[int, list[Any]]:
        """Read one version, whole; return it, and the trees without their arrays."""
        plan = Plan(self.layouts, targets, os.getpid())
        taken = self.whole(lambda version: self._submit(plan, version), with_structures=with_structures)
        plan.finish()
        return taken

    def whole(self, transfer: Callable[[int], None], *, with_structures: bool) -> tuple[int, list[Any]]:
        """Transfer one version, whole; return it, and the trees without their arrays.

        The owner marks a copy before it writes to it, and after. So a copy which is marked as whole before all
        transfers, and with the same version after them, has not been written to in between.

        Args:
            transfer: does it, for a version; called again if that was overwritten meanwhile.
        """
        if not self._versioned:
            transfer(0)
            return 0, [parse_structure(layout.structure) for layout in self.layouts] if with_structures else []
        taken = self._take(transfer, self._heads(), with_structures=with_structures)
        while taken is None:  # owners that publish faster than this reads wait for it from now on
            copies = self._wanted(self._heads())
            self._keep(copies, 1)
            try:
                for _look in range(_LOOKS):
                    heads = self._heads()
                    if self._holds(heads, self._common(heads)):
                        taken = self._take(transfer, heads, with_structures=with_structures)
                        break
                    self._steps.pause()
            finally:
                self._keep(copies, -1)
        return taken[0], [parse_structure(packed) for packed in taken[1]]

    def has(self, version: int) -> bool:
        """Whether all still have a whole copy of *version*; always true without copies."""
        return not self._versioned or self._holds(self._heads(), version)

    def copy_of(self, part: int, version: int) -> int:
        """Index of the copy of a state that has *version*."""
        return version % max(self._shapes[part].num_copies, 1)

    def _take(
        self, transfer: Callable[[int], None], heads: list[bytearray], *, with_structures: bool
    ) -> tuple[int, list[bytearray]] | None:
        """Transfer the last version that all have published; None if one of them has no whole copy of it any more."""
        version = self._common(heads)
        if not self._holds(heads, version):
            return None
        structures = self._structures(heads, version) if with_structures else []
        transfer(version)
        return (version, structures) if self._holds(self._heads(), version) else None

    def _common(self, heads: list[bytearray]) -> int:
        return min(shape.newest(head) for shape, head in zip(self._shapes, heads, strict=True))

    def _wanted(self, heads: list[bytearray]) -> dict[int, int]:
        """Copies to be kept, by state: those of a version that all have; else of the newest, which others will have."""
        version = self._common(heads)
        newest = [shape.newest(head) for shape, head in zip(self._shapes, heads, strict=True)]
        if not self._holds(heads, version):
            version = max(newest)
        return {part: version % shape.num_copies for part, shape in enumerate(self._shapes) if newest[part] >= version}

    def _submit(self, plan: Plan, version: int) -> None:
        action = plan.action(tuple(self.copy_of(part, version) for part in range(len(self._shapes))))
        self._steps.wait(lambda left_s: action.submit(timeout=left_s))

    def _structures(self, heads: list[bytearray], version: int) -> list[bytearray]:
        packed, reads = [], []
        for shape, head, root in zip(self._shapes, heads, self._roots, strict=True):
            start, length = shape.structure_start(version % shape.num_copies), shape.mark(head, version)[1]
            packed.append(bytearray(length))
            reads.append((packed[-1], root[start : start + length]))
        self._do(reads)
        return packed

    def _keep(self, copies: dict[int, int], change: int) -> None:
        """Ask owners to keep copies, or take that back, without waiting for it."""
        action = RDMAAction()
        for part, copy in copies.items():
            pins = self.layouts[part].pins
            assert pins is not None
            action.fetch_add(pins[copy : copy + 1], bytearray(8), change)
        if change > 0:
            self._steps.wait(lambda left_s: action.submit(timeout=left_s))
        else:
            action.submit()


def _values(structures: Sequence[Any]) -> dict[str, Any]:
    """The values that are no arrays, by key."""
    found: dict[str, Any] = {}
    for structure in reversed(structures):
        found.update(named_leaves(structure))
    return found
