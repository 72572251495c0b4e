"""The owner's side of a state: its tree, the versions that it publishes, and the memory that readers reach."""

from __future__ import annotations

import sys
import time
from _thread import allocate_lock
from typing import Any

from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.errors import MemoryAccessError
from monarch_hpc.rdma.buffer import RDMABuffer
from monarch_hpc.rdma.trees.copies import Copies
from monarch_hpc.rdma.trees.host_memory import new_memory
from monarch_hpc.rdma.trees.layout import Entry, Layout, Root, in_words, pack_places
from monarch_hpc.rdma.trees.seen import Lent, SeenTree

__all__ = ["Source", "dtype_name"]

_ROOM_BYTES = 64 * 1024
"""Room for the values of a version that are no arrays, beside twice that of the first: so that counters and texts may
grow."""

_POLL_S = 0.0005
"""Time between two looks at whether readers have ended: short beside the copy of a large tree."""


class Source:
    """The tree of an owner.

    Args:
        num_copies: number of copies that readers get; 0 for the tree's own memory.
        dtype: the type that floating-point elements of the copies are converted to; empty for none.
        writable: whether others may write to the tree's own memory.

    Raises:
        TypeError, ValueError: the tree cannot be read by others.

    Attributes:
        layout: what readers get.
        root: the memory that handles refer to.
        version: the last one that was published; 0 if there are no copies.
    """

    def __init__(self, tree: object, num_copies: int, dtype: str, *, writable: bool) -> None:
        self._tree = tree
        self._lock = allocate_lock()
        self._fence = allocate_lock()
        self.version = 0
        seen = self._seen = SeenTree(tree)
        if seen.empty:
            raise ValueError("the tree has no array or tensor: send it in a message")
        room = _ROOM_BYTES + 2 * len(seen.structure) if num_copies else 0
        self._shape = Root(num_copies, room)
        self._pins = memoryview(bytearray(8 * max(num_copies, 1))).cast("q")
        self._copies: Copies | None = None
        if num_copies:
            self._copies = copies = Copies(seen.arrangement, num_copies, dtype)
            memories = tuple(tuple(RDMABuffer(one, writable=False) for one in blocks) for blocks in copies.blocks)
            entries, regions, structure, pins = copies.entries, tuple(copies.regions), b"", RDMABuffer(self._pins)
            places = pack_places(entries, regions)
        else:
            lent = Lent.of(seen)
            fixed = [key for key, leaf in seen.leaves.items() if not leaf.writable] if writable else []
            if fixed:
                raise ValueError(f"the tree has {in_words(fixed)}, which can only be read: pass copies of them")
            memories, structure, pins = (lent.register(writable=writable),), lent.structure_of(seen), None
            entries, regions, places = lent.entries, lent.regions, lent.packed
        self.layout = Layout(entries, tuple(seen.values), regions, memories, bool(num_copies), structure, pins)
        packed = self._shape.pack(self.layout, places)
        self._root_bytes = new_memory(len(packed))
        self._root_bytes[:] = packed
        self._words = self._root_bytes[: self._shape.head_bytes // 8 * 8].cast("q")
        self.root = RDMABuffer(self._root_bytes, writable=False)
        if num_copies:
            self._publish(seen.structure, 0.0)

    def publish(self, tree: object, timeout_s: float) -> int:
        """See `RDMAState.publish`; *tree* may be None."""
        if self._copies is None:
            raise ValueError(
                "the state has no copies: its readers read the tree itself; make it with RDMAState(tree, copies=2)"
            )
        with self._lock:
            if tree is not None:
                self._tree = tree
            seen = SeenTree(self._tree)
            if seen.signature is None or seen.signature != self._seen.signature or seen.values != self._seen.values:
                self._check_same(seen)
                self._seen = seen
            return self._publish(seen.structure, timeout_s)

    def _check_same(self, seen: SeenTree) -> None:
        before, now = self._seen.arrangement.entries, seen.arrangement.entries
        changed = [key for key in (*before, *now) if key not in before or key not in now]
        if changed or set(seen.values) != set(self._seen.values):
            changed += sorted(set(seen.values) ^ set(self._seen.values))
            raise ValueError(
                f"the tree has other keys than the state was made with: {in_words(changed)}; make another state"
            )
        for key, entry in now.items():
            if entry != before[key]:
                raise ValueError(
                    f"{key!r} was {_shown(before[key])} when the state was made, and is {_shown(entry)}: "
                    "make another state"
                )

    def _publish(self, structure: bytes, timeout_s: float) -> int:
        assert self._copies is not None
        memory = self.root.identifier
        if current_runtime().node.own_memory.memories.find(memory) is None:
            problem = current_runtime().node.own_memory.grants.problem(memory)
            raise MemoryAccessError("this process", problem)
        if len(structure) > self._shape.room:
            raise ValueError(
                f"the values that are no arrays take {len(structure)} bytes, more than the {self._shape.room} "
                "that were set aside when the state was made: send such values in messages"
            )
        version = self.version + 1
        copy, place = version % self._shape.num_copies, self._shape.mark_place(version)
        self._wait_for_readers(copy, timeout_s)
        self._words[place] = -version
        # A reader that finds an element of this version must find this mark too: taking a lock orders the writes, also
        # on processors that do not do so by themselves.
        with self._fence:
            self._copies.write(copy, self._seen.arrangement, self._seen.leaves)
            start = self._shape.structure_start(copy)
            self._root_bytes[start : start + len(structure)] = structure
            self._words[place + 1] = len(structure)
        with self._fence:
            self._words[place] = version
        with self._fence:
            self._words[0] = version
        self.version = version
        return version

    def _wait_for_readers(self, copy: int, timeout_s: float) -> None:
        """Wait until no reader wants the copy to be kept; those that still do then begin again."""
        until_s = time.monotonic() + timeout_s
        while self._pins[copy] > 0 and time.monotonic() < until_s:
            time.sleep(_POLL_S)
        self._pins[copy] = 0


def _shown(entry: Entry) -> str:
    return f"{entry.dtype}{list(entry.strides.shape)} with strides {entry.strides.steps} in memory {entry.region}"


def dtype_name(dtype: object) -> str:
    """The name of a type given as text, or as NumPy or torch have it.

    Raises:
        TypeError: it is no type.
    """
    torch: Any = sys.modules.get("torch")
    if isinstance(dtype, str):
        return dtype
    if torch is not None and isinstance(dtype, torch.dtype):
        return str(dtype).removeprefix("torch.")
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"dtype is {dtype!r}: give a type such as torch.bfloat16 or 'bfloat16'")
    return name
