"""Plans how ranks get what they lack: which have a copy of each value, or parts of it, and what nobody has; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import contiguous_strides
from monarch_hpc.tensor.healing.boxes import box_of, covering, shape_of, within
from monarch_hpc.tensor.stream.holdings import Box, Held, HeldPart, MemoryTransfer, PartTransfer
from monarch_hpc.tensor.stream.records import MeshSpec

__all__ = ["FillPlan", "plan_fill"]

_LOST = -2
_PROGRAM = -1
"""Stands for the program among the ranks that have parts."""


@dataclass(slots=True)
class FillPlan:
    """What has to be done.

    Attributes:
        memories: memory to send, in this order.
        parts: parts of values to send, after that.
        pieces: values to rebuild: rank -> number -> piece.
        given: parts that the program has: rank -> number, the kept part, what of it is needed, where that is in the
            rank's part.
        failed: values to mark as failed: rank -> number -> operation.
        dropped: values that some ranks have dropped already: rank -> numbers.
        lost: values of which nobody has a part: number -> its piece on another rank, and the ranks whose part that is.
        blank: values without contents until a checkpoint is loaded: rank -> number -> its piece on another rank.
    """

    memories: list[MemoryTransfer] = field(default_factory=list)
    parts: list[PartTransfer] = field(default_factory=list)
    pieces: dict[int, dict[int, HeldPart]] = field(default_factory=dict)
    given: dict[int, list[tuple[int, Box, Box, Box]]] = field(default_factory=dict)
    failed: dict[int, dict[int, int]] = field(default_factory=dict)
    dropped: dict[int, list[int]] = field(default_factory=dict)
    lost: dict[int, tuple[HeldPart, list[int]]] = field(default_factory=dict)
    blank: dict[int, dict[int, HeldPart]] = field(default_factory=dict)

    @property
    def lost_state(self) -> dict[int, tuple[HeldPart, list[int]]]:
        """Those of the lost values without which a training cannot go on."""
        return {number: (piece, ranks) for number, (piece, ranks) in self.lost.items() if piece.leaf or piece.written}


def plan_fill(
    held: Mapping[int, Held],
    blank: Collection[int],
    meshes: Mapping[int, MeshSpec],
    kept: Mapping[int, Collection[Box]],
    *,
    loads: bool = False,
) -> FillPlan:
    """Plan.

    Args:
        held: what the ranks with state hold.
        blank: the ranks without.
        meshes: meshes with sharded tensors by number, as they are to be; values on others are lost.
        kept: parts of a value that the program has, by number of the value.
        loads: whether state that is lost comes from a checkpoint afterwards.
    """
    plan = FillPlan()
    for rank in (*held, *blank):
        plan.pieces[rank], plan.given[rank], plan.failed[rank], plan.dropped[rank] = {}, [], {}, []
        plan.blank[rank] = {}
    _drop(held, plan)
    dropped = {number for numbers in plan.dropped.values() for number in numbers}
    for rank in blank:
        for one in held.values():
            plan.failed[rank].update({number: root for number, root in one.failed.items() if number not in dropped})
    filling = _Filling(held, meshes, kept, plan)
    for number, piece in filling.values():
        if number in dropped:
            continue
        spec = meshes.get(piece.mesh)
        lacking = [] if spec is None else [rank for rank in spec.ranks if not filling.fill(rank, number, piece, spec)]
        if lacking or spec is None:
            plan.lost[number] = piece, lacking
    for number, (piece, lacking) in plan.lost.items():
        if loads and number in plan.lost_state and filling.is_alone(number) and piece.mesh in meshes:
            for rank in lacking:
                plan.blank[rank][number] = piece
            continue
        for rank in plan.pieces:
            plan.pieces[rank].pop(number, None)
            if piece.mesh not in meshes or rank in meshes[piece.mesh].ranks:
                plan.failed[rank][number] = _LOST
    gone = {number for number in plan.lost if not any(number in pieces for pieces in plan.blank.values())}
    plan.parts = [one for one in plan.parts if one.number not in gone]
    plan.given = {rank: [one for one in given if one[0] not in gone] for rank, given in plan.given.items()}
    return plan


class _Filling:
    """Fills a plan, value by value.

    Args:
        held: see `plan_fill`.
        meshes: see `plan_fill`.
        kept: see `plan_fill`.
        plan: the plan.
    """

    def __init__(
        self,
        held: Mapping[int, Held],
        meshes: Mapping[int, MeshSpec],
        kept: Mapping[int, Collection[Box]],
        plan: FillPlan,
    ) -> None:
        self._held = held
        self._kept = kept
        self._plan = plan
        self._places: dict[int, dict[tuple[str, int, int], int]] = {rank: {} for rank in plan.pieces}
        self._changed = {  # the values of ranks whose mesh changes are made again, of the same memory
            (rank, number)
            for rank, one in held.items()
            for number, spec in one.meshes.items()
            if meshes.get(number) != spec
        }

    def values(self) -> Iterator[tuple[int, HeldPart]]:
        """All values, with their piece on some rank."""
        pieces: dict[int, HeldPart] = {}
        for one in self._held.values():
            pieces.update(one.pieces)
        yield from sorted(pieces.items())

    def fill(self, rank: int, number: int, piece: HeldPart, spec: MeshSpec) -> bool:
        """Plan how *rank* gets its part of a value; return whether it can."""
        wanted = box_of(spec, piece.dims, piece.whole[0], rank)
        boxes = {other: self._box(other, number) for other, one in self._held.items() if number in one.pieces}
        if boxes.get(rank) == wanted:
            if (rank, piece.mesh) in self._changed:
                self._share_memory(rank, rank, number)
            return True
        donor = next((other for other, box in boxes.items() if box == wanted), None)
        if donor is not None:
            self._share_memory(donor, rank, number)
            return True
        own = {rank: boxes[rank]} if rank in boxes else {}
        sources = [*own.items(), *boxes.items(), *((_PROGRAM, box) for box in self._given(number, piece))]
        found = covering(wanted, [((source, box), box) for source, box in sources])
        if found is None and all(end > begin for begin, end in wanted):
            return False
        leader = self._leader(number)
        if leader is None:
            return False
        self._put_together(rank, number, leader, piece, wanted, found or [])
        return True

    def _box(self, rank: int, number: int) -> Box:
        one = self._held[rank]
        piece = one.pieces[number]
        return box_of(one.meshes[piece.mesh], piece.dims, piece.whole[0], rank)

    def _given(self, number: int, piece: HeldPart) -> list[Box]:
        """The parts that the program has kept of a value which nothing has written to since."""
        return [] if piece.written or not self.is_alone(number) else sorted(self._kept.get(number, ()))

    def _place(self, rank: int, memory: tuple[str, int, int]) -> tuple[int, bool]:
        """The place of a memory on a rank, and whether it is new."""
        places = self._places[rank]
        is_new = memory not in places
        return places.setdefault(memory, len(places)), is_new

    def _share_memory(self, source: int, target: int, number: int) -> None:
        """Plan to rebuild a value in a rank's memory, or in a copy of it."""
        one = self._held[source]
        piece = one.pieces[number]
        place, is_new = self._place(target, ("memory", source, piece.storage))
        if is_new:
            size = one.storages[piece.storage]
            self._plan.memories.append(MemoryTransfer(source, target, number, size, place))
        self._plan.pieces[target][number] = piece._replace(storage=place)

    def _put_together(
        self,
        rank: int,
        number: int,
        leader: int,
        piece: HeldPart,
        wanted: Box,
        found: list[tuple[tuple[int, Box], Box]],
    ) -> None:
        """Plan to rebuild a value, and those that are windows to the same elements, in new memory."""
        place, is_new = self._place(rank, ("new", leader, 0))
        shape = shape_of(wanted)
        self._plan.pieces[rank][number] = piece._replace(
            storage=place, offset=0, shape=shape, stride=contiguous_strides(shape)
        )
        if not is_new:
            return
        for (source, box), shared in found:
            taken, put = within(shared, box), within(shared, wanted)
            if source == _PROGRAM:
                self._plan.given[rank].append((number, box, taken, put))
            else:
                self._plan.parts.append(PartTransfer(source, rank, number, taken, put, place))

    def _leader(self, number: int) -> int | None:
        """The first of the values that are the same window to a memory; None if there are other windows to it."""
        one = next(one for one in self._held.values() if number in one.pieces)
        sharers = {n: piece for n, piece in one.pieces.items() if piece.storage == one.pieces[number].storage}
        own = one.pieces[number]
        is_one = all(
            (piece.offset, piece.stride, piece.dims, piece.whole, piece.mesh)
            == (own.offset, own.stride, own.dims, own.whole, own.mesh)
            for piece in sharers.values()
        )
        return min(sharers) if is_one else None

    def is_alone(self, number: int) -> bool:
        """Whether no other value shares the memory of this one."""
        one = next(one for one in self._held.values() if number in one.pieces)
        return sum(piece.storage == one.pieces[number].storage for piece in one.pieces.values()) == 1


def _drop(held: Mapping[int, Held], plan: FillPlan) -> None:
    """Note values that some rank no longer has: the program dropped them, and other ranks have not read that."""
    for rank, one in held.items():
        for number, piece in one.pieces.items():
            others = [other for other in one.meshes[piece.mesh].ranks if other in held]
            if any(number not in held[other].pieces and number not in held[other].failed for other in others):
                plan.dropped[rank].append(number)
