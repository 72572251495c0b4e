"""Descriptions of what ranks hold, and orders to hand it over, as they travel between program and ranks in a heal."""

from __future__ import annotations

from typing import Any, NamedTuple

from monarch_hpc.tensor.stream.records import MeshSpec

__all__ = [
    "PARTIAL",
    "REPLICATED",
    "Box",
    "Held",
    "HeldPart",
    "LateFrame",
    "MemoryTransfer",
    "PartTransfer",
    "RankStatus",
    "Rejoining",
    "Reply",
    "Restoring",
    "WorkerPlace",
]

Box = tuple[tuple[int, int], ...]
"""A part of a value: for each dimension, where it begins and ends."""

REPLICATED = -1
"""Placement of a value along a dimension of its mesh: whole on each rank; a number from 0 on: sharded there."""
PARTIAL = -2
"""Likewise: a sum that is not added up."""

Reply = tuple[str, Any, tuple[int, ...], int, int]
"""``value``, ``failed``, ``refused`` or ``halted``; the value, number of the operation, rank and report of a copy that
failed, or cause; numbers of effects that failed since the last reply; the version of the rank, and the number of its
changes since then."""


class RankStatus(NamedTuple):
    """How far a rank has come.

    Attributes:
        version: number of commits that it has done.
        prepared: the commit whose barrier it has entered and not seen to pass; 0 if there is none.
        cause: why it has stopped before it was told to; empty if it has not.
    """

    version: int
    prepared: int
    cause: str


class WorkerPlace(NamedTuple):
    """What a rank is doing.

    Attributes:
        seq: sequence number of the latest operation that it has begun.
        stack: of its thread, as text; empty if it executes nothing.
    """

    seq: int
    stack: str


class HeldPart(NamedTuple):
    """A value on one rank: a window into its memory.

    Attributes:
        storage: place of the memory in `Held.storages`.
        offset: of the first element.
        shape: of this rank's part.
        stride: of this rank's part.
        dtype: type of elements.
        mesh: number of the mesh that the value is sharded over.
        dims: for each dimension of the mesh, the dimension of the value that it shards, or `REPLICATED`.
        whole: shape and strides of the whole value.
        leaf: whether it is a leaf of autograd's graph that requires a gradient.
        written: whether it was written to since it was made.
        inner: whether autograd's graph has led to it, whose history a heal drops.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: Any
    mesh: int
    dims: tuple[int, ...]
    whole: tuple[tuple[int, ...], tuple[int, ...]]
    leaf: bool
    written: bool
    inner: bool = False


class Held(NamedTuple):
    """All that a rank holds.

    Attributes:
        pieces: values by number.
        failed: the operations that have spoilt values, by number of the value.
        storages: sizes of the memory in bytes.
        random: states of random numbers by number of the mesh.
        meshes: the meshes that the values are sharded over, by number, as this rank knows them.
    """

    pieces: dict[int, HeldPart]
    failed: dict[int, int]
    storages: tuple[int, ...]
    random: dict[int, Any]
    meshes: dict[int, MeshSpec]


class LateFrame(NamedTuple):
    """A frame that some ranks may not have got, or executed.

    Attributes:
        ranks: the ranks that it is for.
        base: sequence number of its first operation.
        num: number of its operations.
        objects: what records refer to by number.
        data: the records.
    """

    ranks: tuple[int, ...]
    base: int
    num: int
    objects: list[Any]
    data: bytes


class Rejoining(NamedTuple):
    """What a rank does to go on with others where each has values of its own.

    Attributes:
        epoch: number of the attempt.
        addresses: IP addresses by rank.
        present: the ranks that the mesh has afterwards.
        specs: templates that the rank may not have.
        lost_before: values with smaller numbers are not on this rank: it was started again, or left out meanwhile; 0 if
            all are.
    """

    epoch: int
    addresses: dict[int, str]
    present: tuple[int, ...]
    specs: list[tuple[int, Any]]
    lost_before: int


class MemoryTransfer(NamedTuple):
    """Memory that one rank sends to another; or uses itself, where both are the same.

    Attributes:
        source: a rank.
        target: a rank.
        number: a value whose memory it is.
        num_bytes: its size.
        place: that of the memory on the target, as `HeldPart.storage` there.
    """

    source: int
    target: int
    number: int
    num_bytes: int
    place: int


class PartTransfer(NamedTuple):
    """A part of a value that one rank copies to another, whose own part it is in.

    Attributes:
        source: a rank.
        target: a rank.
        number: the value.
        taken: the part, within that of the source.
        put: the part, within that of the target.
        place: of the target's memory, as `HeldPart.storage` there.
    """

    source: int
    target: int
    number: int
    taken: Box
    put: Box
    place: int


class Restoring(NamedTuple):
    """What a rank does to go on with others in a healed mesh.

    Attributes:
        epoch: number of the attempt.
        version: of the state.
        mark: number of the first value that is younger.
        addresses: IP addresses by rank.
        present: ranks that take part in the attempt.
        world: those of them that the mesh has afterwards.
        specs: templates that the rank may not have.
        meshes: numbers of those that describe meshes with sharded tensors.
        memories: memory that ranks send each other, in an order that is the same on all.
        parts: likewise, parts of values, after that.
        pieces: values to rebuild here.
        given: parts of values from the program: number, where it is in this rank's part, and the part.
        blank: values to make here without contents, as they are on another rank.
        failed: values to mark as failed here.
        random: how far random numbers were drawn, see `ShardedOps.draws`.
        propagated: what DTensor has worked out for operators elsewhere, by number of the mesh; for a rank that is new,
            and for all where the mesh has other ranks than before.
        moved: numbers of meshes that have other ranks than before.
        dropped: values that other ranks have dropped already.
        leaves: those whose gradients were computed before the version, and are lost.
    """

    epoch: int
    version: int
    mark: int
    addresses: dict[int, str]
    present: tuple[int, ...]
    world: tuple[int, ...]
    specs: list[tuple[int, Any]]
    meshes: list[int]
    memories: list[MemoryTransfer]
    parts: list[PartTransfer]
    pieces: dict[int, HeldPart]
    given: list[tuple[int, Box, Any]]
    blank: dict[int, HeldPart]
    failed: dict[int, int]
    random: dict[int, Any]
    propagated: dict[int, bytes]
    moved: list[int]
    dropped: list[int]
    leaves: list[int]
