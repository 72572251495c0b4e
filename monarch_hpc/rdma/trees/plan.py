"""The transfers that bring the elements of a state from their owners into arrays of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.rdma.action import RDMAAction
from monarch_hpc.rdma.trees.boxes import Box
from monarch_hpc.rdma.trees.host_memory import bytes_at
from monarch_hpc.rdma.trees.layout import ALIGNMENT, Entry, Layout, in_words
from monarch_hpc.rdma.trees.leaf import Leaf, library_of, look_at_leaf
from monarch_hpc.rdma.trees.strides import Strides, cheapest_runs

__all__ = ["PieceMove", "Plan", "check_targets"]


@dataclass(slots=True)
class PieceMove:
    """Bytes that move as they are.

    Attributes:
        part, memory, source: where they are: state, its memory, place in that.
        target: address here.
        leaf: what has this address.
    """

    part: int
    memory: int
    source: int
    target: int
    num_bytes: int
    key: str
    leaf: Leaf

    def continues(self, other: PieceMove) -> bool:
        """Whether it takes its bytes from the same memory, at the same distance from their target."""
        distance = other.source - other.target
        return (self.part, self.memory, self.source - self.target) == (other.part, other.memory, distance)


class Plan:
    """The transfers for *targets*, by their keys, from the states with *layouts*.

    Args:
        turn: any number; of several who have the same elements, readers with different ones begin with different ones.

    Raises:
        TypeError, ValueError: the elements are of another type or shape, or no owner has them.

    Attributes:
        moves: what is moved, no byte here twice.
    """

    def __init__(self, layouts: Sequence[Layout], targets: dict[str, Leaf], turn: int) -> None:
        self._layouts = layouts
        self.moves: list[PieceMove] = []
        self._sorted: list[tuple[Any, Any, Leaf]] = []  # what is sorted out here: new elements, and where they belong
        self._actions: dict[tuple[int, ...], RDMAAction] = {}
        for key, leaf in targets.items():
            holders = [(part, layout.entries[key]) for part, layout in enumerate(layouts) if key in layout.entries]
            for _part, entry in holders:
                _check(key, leaf, entry)
            if 0 in leaf.box.sizes:
                continue
            shift = (turn + holders[0][1].region) % len(holders)
            rest = [leaf.box]
            for part, entry in holders[shift:] + holders[:shift]:
                rest = self._take(key, leaf, rest, part, entry)
            if rest:
                raise ValueError(
                    f"none of the {len(layouts)} states has the elements of {key!r} from {rest[0].offsets} on, "
                    f"{rest[0].sizes} of them: join the states of all who have shards"
                )
        self.moves = _joined(self.moves)

    def _take(self, key: str, leaf: Leaf, boxes: list[Box], part: int, entry: Entry) -> list[Box]:
        """Take what *entry* has of *boxes*; return what is left of them."""
        rest = []
        for box in boxes:
            shared = box.meet(entry.box)
            if shared is None:
                rest.append(box)
                continue
            rest += box.without(shared)
            self._move(key, leaf, shared.within(leaf.box), part, entry, shared.within(entry.box))
        return rest

    def _move(
        self, key: str, leaf: Leaf, place: tuple[slice, ...], part: int, entry: Entry, from_place: tuple[slice, ...]
    ) -> None:
        region = self._layouts[part].regions[entry.region]
        source, target = entry.strides.part(from_place), leaf.strides.part(place)
        try:
            runs = cheapest_runs(source, target)
        except ValueError as error:
            raise ValueError(f"{key!r} cannot be read into: {error}") from None
        if runs is None:
            first, last = source.span
            lead = (region.lead + first) % ALIGNMENT
            library = library_of(leaf.kind)
            memory = library.memory(lead + last - first, leaf.device)
            strides = Strides(lead + source.first - first, source.shape, source.steps, source.item_bytes)
            beside = look_at_leaf(key, library.make(memory, leaf.dtype, strides, ""))
            assert beside is not None
            self._sorted.append((beside.data, leaf.data[place], leaf))
            runs, leaf = [(first, beside.strides.span[0], last - first)], beside
        for from_first, to_first, num_bytes in runs:
            at = region.start + from_first
            self.moves.append(PieceMove(part, region.memory, at, to_first, num_bytes, key, leaf))

    def action(self, copies: tuple[int, ...]) -> RDMAAction:
        """What reads all of it, from these copies of the states."""
        action = self._actions.get(copies)
        if action is None:
            action = self._actions[copies] = RDMAAction()
            for move in self.moves:
                buffer = self._layouts[move.part].copies[copies[move.part]][move.memory]
                here = bytes_at(move.leaf, move.target, move.num_bytes)
                action.read_remote(here, buffer[move.source : move.source + move.num_bytes])
        return action

    def finish(self) -> None:
        """Sort out what was read with all that lies between."""
        for beside, target, leaf in self._sorted:
            library_of(leaf.kind).copy(target, beside)


def _check(key: str, leaf: Leaf, entry: Entry) -> None:
    if leaf.dtype != entry.dtype:
        raise TypeError(f"{key!r} has elements of {leaf.dtype} here, and of {entry.dtype} in the state")
    if leaf.whole != entry.whole:
        raise ValueError(f"{key!r} has shape {leaf.whole} here, and {entry.whole} in the state")
    if not leaf.writable:
        raise ValueError(f"{key!r} is read-only here: pass a copy")


def _joined(moves: list[PieceMove]) -> list[PieceMove]:
    """The same bytes in as few moves as possible; those that arrays share are moved once.

    Raises:
        ValueError: arrays here share memory, and those in the state do not.
    """
    joined: list[PieceMove] = []
    for move in sorted(moves, key=lambda move: (move.leaf.device, move.target)):
        last = joined[-1] if joined else None
        end = -1 if last is None or last.leaf.device != move.leaf.device else last.target + last.num_bytes
        if last is None or move.target > end:
            joined.append(move)
        elif move.continues(last) and (move.target < end or move.leaf.device == "cpu"):
            last.num_bytes = max(end, move.target + move.num_bytes) - last.target
        elif move.target == end:
            joined.append(move)
        else:
            raise ValueError(
                f"{last.key!r} and {move.key!r} share memory here, but not in the state: pass a copy of one of them"
            )
    return joined


def check_targets(layouts: Sequence[Layout], here: dict[str, Any], keys: Sequence[str], *, all_of_them: bool) -> None:
    """Compare the keys of a tree with those that are read.

    Args:
        here: the tree's values by key.
        all_of_them: whether the tree must have no other.

    Raises:
        ValueError: a key is missing, or there is one too many.
    """
    missing = [key for key in keys if key not in here]
    if missing:
        raise ValueError(f"the tree here lacks {in_words(missing)} of the state; name what to read with keys=")
    known = {key for layout in layouts for key in (*layout.entries, *layout.values)}
    extra = [key for key in here if key not in known]
    if all_of_them and extra:
        raise ValueError(f"the tree here has {in_words(extra)}, which the state has not; name what to read with keys=")
