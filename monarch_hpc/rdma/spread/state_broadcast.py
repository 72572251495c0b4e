"""Broadcasts of states: the arrays of one tree into those of others, range by range, each as a buffer travels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.errors import CopyFailed, MemoryAccessError
from monarch_hpc.rdma.buffer import RDMABuffer
from monarch_hpc.rdma.spread.copying import Copying
from monarch_hpc.rdma.spread.spreading import Spreading
from monarch_hpc.rdma.trees.layout import Entry, Layout, SharedRange, in_words
from monarch_hpc.rdma.trees.reader import Reader
from monarch_hpc.rdma.trees.reading import Reading

__all__ = ["begin_state_broadcast"]

_Content = tuple[tuple[Any, ...], ...]
"""The arrays of a range: of each its key, type and place in it. Equal where the bytes of two ranges mean the same."""


def begin_state_broadcast(
    what: str, source: Sequence[RDMABuffer], destinations: Sequence[Sequence[RDMABuffer]], timeout_s: float | None
) -> Future[int]:
    """Copy a whole version of a state to others; see `broadcast`.

    Args:
        what: describes it, for errors.
        source, destinations: the roots of the states.

    Returns:
        A future with the version.
    """
    runtime = current_runtime()

    def work(steps: Reading[int]) -> int:
        everyone = [root for roots in (source, *destinations) for root in roots]
        Reader.fetch(steps, everyone)  # all layouts at once
        reader = Reader(steps, source)
        sources = _ranges_of(reader.layouts)
        targets = [_ranges_of(Reader(steps, roots).layouts) for roots in destinations]
        for index, (roots, found) in enumerate(zip(destinations, targets, strict=True)):
            _check(f"destinations[{index}]", roots, sources, found)

        def spread(version: int) -> None:
            if not targets:
                return
            copies = [
                (
                    _memory(reader.layouts, part, place, reader.copy_of(part, version)),
                    [_memory(found[content][2], found[content][0], found[content][1], 0) for found in targets],
                    content[0][0],
                )
                for content, (part, place, _layouts) in sources.items()
            ]
            try:
                steps.wait(lambda left_s: _begin(runtime, what, copies, left_s))
            except CopyFailed as error:
                if reader.has(version):
                    raise
                mixed = MemoryAccessError("the source", f"it has overwritten version {version} meanwhile")
                raise CopyFailed(what, dict.fromkeys(range(len(targets)), mixed) | error.failures) from error

        version, _structures = reader.whole(spread, with_structures=False)
        return version

    return Reading(runtime.engine, what, timeout_s, work)


_Copy = tuple[RDMABuffer, list[RDMABuffer], str]


def _begin(runtime: Runtime, what: str, copies: Sequence[_Copy], timeout_s: float | None) -> Future[None]:
    def make(changed: Callable[[Copying], None], report_s: float) -> list[Copying]:
        return [
            Copying(
                runtime,
                (f"{key!r} of the source", memory),
                {index: (f"{key!r} of destinations[{index}]", target) for index, target in enumerate(targets)},
                changed,
                report_s,
            )
            for memory, targets, key in copies
        ]

    spreading = Spreading(runtime, what, timeout_s, make, sum(len(targets) for _memory, targets, _key in copies))
    spreading.begin()
    return spreading


_Ranges = dict[_Content, tuple[int, SharedRange, Sequence[Layout]]]


def _ranges_of(layouts: Sequence[Layout]) -> _Ranges:
    """The ranges of what several owners have together, by their contents, with the index of an owner."""
    found: _Ranges = {}
    for part, layout in enumerate(layouts):
        members: dict[int, list[tuple[str, Entry]]] = {}
        for key, entry in sorted(layout.entries.items()):
            if entry.region >= 0:
                members.setdefault(entry.region, []).append((key, entry))
        for number, some in members.items():
            region = layout.regions[number]
            for first, last, group in _groups(some):
                content = tuple(_content(first, key, entry) for key, entry in sorted(group, key=itemgetter(0)))
                place = SharedRange(region.memory, region.start + first, last - first, 0)
                found.setdefault(content, (part, place, layouts))
    return found


def _groups(members: list[tuple[str, Entry]]) -> list[tuple[int, int, list[tuple[str, Entry]]]]:
    """First and last place of arrays that overlap, such as tied weights and views; others are apart."""
    groups: list[tuple[int, int, list[tuple[str, Entry]]]] = []
    for key, entry in sorted(members, key=lambda member: member[1].strides.span):
        first, last = entry.strides.span
        if groups and first < groups[-1][1]:
            begin, end, group = groups.pop()
            groups.append((begin, max(end, last), [*group, (key, entry)]))
        else:
            groups.append((first, last, [(key, entry)]))
    return groups


def _content(first: int, key: str, entry: Entry) -> tuple[Any, ...]:
    strides = entry.strides
    return key, entry.dtype, strides.first - first, strides.shape, strides.steps, entry.box, entry.whole


def _memory(layouts: Sequence[Layout], part: int, place: SharedRange, copy: int) -> RDMABuffer:
    return layouts[part].copies[copy][place.memory].part(place.start, place.num_bytes)


def _check(name: str, roots: Sequence[RDMABuffer], sources: _Ranges, found: _Ranges) -> None:
    """Refuse a state that cannot take the bytes of the source as they are.

    Raises:
        ValueError: *name* and the keys.
    """
    keys = sorted({one[0] for content in sources.keys() ^ found.keys() for one in content})
    if keys:
        raise ValueError(
            f"{name} and the source differ in {in_words(keys)}: a broadcast copies arrays of the same keys, types, "
            "shapes, strides, shards and ties as they are; use read_into for others"
        )
    for content, (part, place, layouts) in found.items():
        layout, key = layouts[part], content[0][0]
        if layout.versioned or not layout.copies[0][place.memory].writable:
            raise ValueError(
                f"{name}, {roots[part].owner}, can only be read: make it with RDMAState(tree, writable=True)"
            )
        if not any(_fills(layout.entries[one[0]], place) for one in content):
            raise ValueError(f"{key!r} of {name} lies between other memory: use read_into, or contiguous arrays")


def _fills(entry: Entry, place: SharedRange) -> bool:
    """Whether every byte of the range belongs to the array."""
    return math.prod(entry.strides.shape) * entry.strides.item_bytes == place.num_bytes
