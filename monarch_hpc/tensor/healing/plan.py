"""Plans how the ranks that hold no state get it: which rank has a copy of each value, and what nobody has; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.tensor.stream.holdings import REPLICATED, Held, HeldPart, MemoryTransfer
from monarch_hpc.tensor.stream.records import MeshSpec

__all__ = ["FillPlan", "coordinates", "plan_fill", "same_part"]


@dataclass(slots=True)
class FillPlan:
    """What has to be done.

    Attributes:
        transfers: memory to send, in this order.
        pieces: values to rebuild: rank -> number -> piece.
        given: values of which the program has the part: rank -> numbers.
        failed: values to mark as failed: rank -> number -> operation.
        dropped: values that some ranks have dropped already: rank -> numbers.
        lost: values of which nobody has a part: number -> its piece on another rank, and the ranks whose part that is.
        blank: values without contents until a checkpoint is loaded: rank -> number -> its piece on another rank.
    """

    transfers: list[MemoryTransfer] = field(default_factory=list)
    pieces: dict[int, dict[int, HeldPart]] = field(default_factory=dict)
    given: dict[int, list[int]] = field(default_factory=dict)
    failed: dict[int, dict[int, int]] = field(default_factory=dict)
    dropped: dict[int, list[int]] = field(default_factory=dict)
    lost: dict[int, tuple[HeldPart, list[int]]] = field(default_factory=dict)
    blank: dict[int, dict[int, HeldPart]] = field(default_factory=dict)

    @property
    def lost_state(self) -> dict[int, tuple[HeldPart, list[int]]]:
        """Those of the lost values without which a training cannot go on."""
        return {number: (piece, ranks) for number, (piece, ranks) in self.lost.items() if piece.leaf or piece.written}


def coordinates(spec: MeshSpec, rank: int) -> tuple[int, ...]:
    """The place of a rank in a mesh."""
    left, found = spec.ranks.index(rank), []
    for size in reversed(spec.sizes):
        left, place = divmod(left, size)
        found.append(place)
    return tuple(reversed(found))


def same_part(spec: MeshSpec, dims: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """What tells the part of a value that a rank has from those of others: equal where ranks have the same."""
    places = coordinates(spec, rank)
    return tuple(place for place, dim in zip(places, dims, strict=True) if dim != REPLICATED)


def plan_fill(
    held: Mapping[int, Held],
    blank: Collection[int],
    meshes: Mapping[int, MeshSpec],
    kept: Mapping[int, Collection[int]],
    *,
    loads: bool = False,
) -> FillPlan:
    """Plan.

    Args:
        held: what the ranks with state hold.
        blank: the ranks without.
        meshes: meshes with sharded tensors by number.
        kept: ranks whose part of a value the program has, by number of the value.
        loads: whether state that is lost comes from a checkpoint afterwards.
    """
    plan = FillPlan()
    for rank in (*held, *blank):
        plan.pieces[rank], plan.given[rank], plan.failed[rank], plan.dropped[rank] = {}, [], {}, []
        plan.blank[rank] = {}
    _drop(held, meshes, plan)
    pieces: dict[int, HeldPart] = {}
    for one in held.values():
        pieces.update(one.pieces)
    dropped = {number for numbers in plan.dropped.values() for number in numbers}
    for rank in blank:
        sent: dict[tuple[int, int], int] = {}
        places: dict[tuple[int, int], int] = {}
        for number, any_piece in sorted(pieces.items()):
            spec = meshes[any_piece.mesh]
            if rank not in spec.ranks or number in dropped:
                continue
            own = same_part(spec, any_piece.dims, rank)
            donor = next(
                (
                    other
                    for other, one in held.items()
                    if number in one.pieces and same_part(spec, one.pieces[number].dims, other) == own
                ),
                None,
            )
            if donor is not None:
                piece = held[donor].pieces[number]
                memory = donor, piece.storage
                if memory not in sent:
                    sent[memory] = number
                    places[memory] = len(places)
                    plan.transfers.append(MemoryTransfer(donor, rank, number, held[donor].storages[piece.storage]))
                plan.pieces[rank][number] = piece._replace(storage=places[memory])
            elif rank in kept.get(number, ()) and not any_piece.written and _is_alone(number, held):
                places[-1, number] = len(places)
                plan.given[rank].append(number)
                plan.pieces[rank][number] = any_piece._replace(storage=places[-1, number])
            else:
                plan.lost.setdefault(number, (any_piece, []))[1].append(rank)
        for one in held.values():
            plan.failed[rank].update({number: root for number, root in one.failed.items() if number not in dropped})
    for number, (piece, lacking) in plan.lost.items():
        if loads and number in plan.lost_state and _is_alone(number, held):
            for rank in lacking:
                plan.blank[rank][number] = piece
            continue
        for rank in meshes[piece.mesh].ranks:
            plan.pieces[rank].pop(number, None)
            plan.failed[rank][number] = _LOST
    return plan


_LOST = -2


def _is_alone(number: int, held: Mapping[int, Held]) -> bool:
    """Whether no other value shares the memory of this one."""
    one = next(one for one in held.values() if number in one.pieces)
    return sum(piece.storage == one.pieces[number].storage for piece in one.pieces.values()) == 1


def _drop(held: Mapping[int, Held], meshes: Mapping[int, MeshSpec], plan: FillPlan) -> None:
    """Note values that some rank no longer has: the program dropped them, and other ranks have not read that."""
    for rank, one in held.items():
        for number, piece in one.pieces.items():
            others = [other for other in meshes[piece.mesh].ranks if other in held]
            if any(number not in held[other].pieces and number not in held[other].failed for other in others):
                plan.dropped[rank].append(number)
