"""The copies of a tree that readers get, each with the elements of one version."""

from __future__ import annotations

from typing import Any

from monarch_hpc.rdma.trees.arrangement import Arrangement
from monarch_hpc.rdma.trees.host_memory import bytes_at, copy_bytes, new_memory
from monarch_hpc.rdma.trees.layout import ALIGNMENT, Entry, SharedRange
from monarch_hpc.rdma.trees.leaf import Leaf, library_of
from monarch_hpc.rdma.trees.strides import Strides

__all__ = ["Copies"]


class Copies:
    """Memory for *num_copies* versions of what is in an arrangement: one block on each device for each copy.

    Args:
        dtype: the type that floating-point elements are converted to; empty for none.

    Raises:
        TypeError, ValueError: elements cannot be converted.

    Attributes:
        entries, regions: where the elements lie in a copy.
        blocks: of each copy, as `SharedRange.memory` counts them.
    """

    def __init__(self, arrangement: Arrangement, num_copies: int, dtype: str) -> None:
        self.entries = dict(arrangement.entries)
        self.regions: list[SharedRange] = []
        self._converted: set[int] = set()
        devices: list[str] = []
        ends: list[int] = []
        for region, one in enumerate(arrangement.ranges):
            keys = [key for key, entry in arrangement.entries.items() if entry.region == region]
            num_bytes, lead = one.num_bytes, one.first % ALIGNMENT
            if dtype and any(_converts(arrangement.entries[key], dtype) for key in keys):
                old, new = self._convert(keys, dtype)
                num_bytes, lead = num_bytes // old * new, 0
                self._converted.add(region)
            if one.device not in devices:
                devices.append(one.device)
                ends.append(0)
            memory = devices.index(one.device)
            start = -(-ends[memory] // ALIGNMENT) * ALIGNMENT + lead
            self.regions.append(SharedRange(memory, start, num_bytes, lead))
            ends[memory] = start + num_bytes
        self.blocks: list[list[Any]] = [
            [_new_block(size, device) for size, device in zip(ends, devices, strict=True)]
            for _copy in range(num_copies)
        ]
        self._targets = [self._converted_targets(blocks) for blocks in self.blocks]

    def _convert(self, keys: list[str], dtype: str) -> tuple[int, int]:
        """Convert the entries of a region; return the sizes of an element before and after."""
        entries = [self.entries[key] for key in keys]
        old, new = entries[0].strides.item_bytes, library_of(entries[0].kind).item_bytes(dtype)
        for key, entry in zip(keys, entries, strict=True):
            if entry.dtype != entries[0].dtype or entry.strides.first % old:
                raise ValueError(
                    f"{key!r} and {keys[0]!r} share memory, but not as elements of one type, so that they cannot be "
                    f"converted to {dtype}: give one of them as a copy"
                )
            places = (entry.strides.first // old * new, entry.strides.shape)
            steps = tuple(step // old * new for step in entry.strides.steps)
            self.entries[key] = entry._replace(dtype=dtype, strides=Strides(*places, steps, new))
        return old, new

    def _converted_targets(self, blocks: list[Any]) -> dict[str, Any]:
        """Where the converted elements of one copy go; once for those that are the same."""
        targets: dict[tuple[int, Strides], str] = {}
        for key, entry in self.entries.items():
            if entry.region in self._converted:
                targets.setdefault((entry.region, entry.strides), key)
        made = {}
        for (index, strides), key in targets.items():
            region, kind = self.regions[index], self.entries[key].kind
            placed = strides._replace(first=region.start + strides.first)
            made[key] = library_of(kind).make(blocks[region.memory], self.entries[key].dtype, placed, "")
        return made

    def write(self, copy: int, arrangement: Arrangement, leaves: dict[str, Leaf]) -> None:
        """Fill a copy from *leaves*, which lie as those did that it was made for; done on return."""
        for index, (region, one) in enumerate(zip(self.regions, arrangement.ranges, strict=True)):
            if index in self._converted:
                continue
            block = self.blocks[copy][region.memory]
            if one.device == "cpu":
                copy_bytes(block, region.start, one.first, one.num_bytes)
            else:
                source = bytes_at(one.leaves[0], one.first, one.num_bytes)
                library_of("torch").copy(block[region.start : region.start + one.num_bytes], source)
        for key, target in self._targets[copy].items():
            library_of(leaves[key].kind).copy(target, leaves[key].data)


def _converts(entry: Entry, dtype: str) -> bool:
    return entry.dtype != dtype and library_of(entry.kind).is_floating(entry.dtype)


def _new_block(num_bytes: int, device: str) -> Any:
    return new_memory(num_bytes) if device == "cpu" else library_of("torch").memory(num_bytes, device)
