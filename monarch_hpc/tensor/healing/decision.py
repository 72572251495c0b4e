"""Decides at which version a broken mesh goes on, and whether it is exact to repeat the last batch there; pure."""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.tensor.stream.holdings import RankStatus

__all__ = ["Position", "TornError", "decide", "obstacle_to_repeating"]


class TornError(Exception):
    """Ranks are at versions that the protocol excludes."""


def decide(statuses: Mapping[int, RankStatus], known: int) -> int:
    """The version at which the mesh goes on: the newest that any rank has reached, or has reported before it died.

    Args:
        statuses: of the ranks that are left.
        known: the newest version that a rank has ever reported.

    Raises:
        TornError: a rank can neither be there nor go there.
    """
    version = max(known, *(status.version for status in statuses.values()))
    for rank, status in sorted(statuses.items()):
        if status.version != version and not (status.version == version - 1 and status.prepared == version):
            raise TornError(f"rank {rank} is at version {status.version}, prepared {status.prepared}, of {version}")
    return version


@dataclass(frozen=True, slots=True)
class Position:
    """What a program had issued, and seen, when its mesh broke.

    Attributes:
        issued: number of commits.
        seen: version of the rank that gave the last value which the program got.
        effects: changes of the state after that version, and before that value.
        backwards: number of backward passes issued after each version, if there are any.
        changes: likewise of changes of older tensors by the program's own code, and of seeds.
    """

    issued: int
    seen: int
    effects: int
    backwards: Mapping[int, int]
    changes: Mapping[int, int]


def obstacle_to_repeating(position: Position, version: int) -> str:
    """Why a program that repeats its last batch at *version* would not be exact; empty if it is.

    It is if the last value that the program has got was that of *version*, so that all it lost is what it issued since,
    and that is one step at most.
    """
    if position.seen > version:
        return f"a value of version {position.seen} was read"
    if position.seen < version:
        return (
            f"version {version} is done, but no value was read after it: it is not known whether the program has gone "
            "on to the next batch; read a value after each optimizer.step()"
        )
    if position.effects:
        return (
            f"a value was read after changes that followed version {version}, and they are lost: part of an "
            "accumulation, or a write to a tensor"
        )
    num_changes = sum(num for at, num in position.changes.items() if at >= version)
    if num_changes:
        return (
            f"{num_changes} writes to tensors, or seeds, are lost that belong to no step, and may not be repeated with "
            "the batch; call mesh.commit() after them"
        )
    num_steps = position.issued - version
    num_backwards = sum(num for at, num in position.backwards.items() if at >= version)
    if num_steps > 1 or (num_steps == 1 and position.backwards.get(position.issued)):
        return f"{num_steps} steps and what followed them are lost: no value was read in between"
    if num_backwards > 1:
        return f"{num_backwards} backward passes are lost, which a single batch may not repeat"
    return ""
