"""Descriptions of what ranks hold, and orders to hand it over, as they travel between program and ranks in a heal."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["PARTIAL", "REPLICATED", "Held", "HeldPart", "MemoryTransfer", "RankStatus", "Reply", "WorkerPlace"]

REPLICATED = -1
"""Placement of a value along a dimension of its mesh: whole on each rank; a number from 0 on: sharded there."""
PARTIAL = -2
"""Likewise: a sum that is not added up."""

Reply = tuple[str, Any, tuple[int, ...], int, int]
"""``value``, ``failed`` or ``halted``; the value, number of the operation, or cause; numbers of effects that failed
since the last reply; the version of the rank, and the number of its changes since then."""


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


class Held(NamedTuple):
    """All that a rank holds.

    Attributes:
        pieces: values by number.
        failed: the operations that have spoilt values, by number of the value.
        storages: sizes of the memory in bytes.
        random: states of random numbers by number of the mesh.
    """

    pieces: dict[int, HeldPart]
    failed: dict[int, int]
    storages: tuple[int, ...]
    random: dict[int, Any]


class MemoryTransfer(NamedTuple):
    """Memory that one rank sends to another.

    Attributes:
        source: a rank.
        target: a rank.
        number: a value whose memory it is.
        num_bytes: its size.
    """

    source: int
    target: int
    number: int
    num_bytes: int
