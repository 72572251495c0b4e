"""Spare hosts: which hosts of an allocation are in use, and which take the place of lost ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["hosts_in_use", "substitutes"]


def hosts_in_use(present: Sequence[int], num_hosts: int, num_spares: int) -> list[int]:
    """The hosts that programs get unless they ask for others; the rest of *present* are spares.

    Args:
        present: ranks of the hosts that work, in order.
        num_hosts: number of hosts of the allocation, with those that do not work.
        num_spares: how many of these are spares, while all work.
    """
    return list(present[: max(num_hosts - num_spares, 1)])


def substitutes(
    hosts: Sequence[int], lost: Collection[int], present: Sequence[int], in_use: Collection[int]
) -> dict[int, int]:
    """A host for the procs of each lost host of a mesh: one without procs of that mesh, spares first.

    Args:
        hosts: those of the mesh.
        lost: those that do not work.
        present: the hosts of the allocation that work, in order.
        in_use: those that are not spares while all work.

    Returns:
        Lost host -> its substitute; where there are too few, the later ones have none.
    """
    free = sorted((rank for rank in present if rank not in hosts), key=lambda rank: (rank in in_use, rank))
    return dict(zip((rank for rank in hosts if rank in lost), free, strict=False))
