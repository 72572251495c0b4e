"""Who passes a cast on to whom: the hosts of an allocation as a tree, whichever of them it enters at.

Positions count the hosts from the root on, around the end of the allocation and back. Whoever sees to an interval
of positions keeps its own, cuts the rest into as many pieces as the fan-out allows, and gives each piece to one host
in it. The pieces depend on nothing but the interval: all casts that enter at one host take the same way to another
one, and so keep their order, whomever they are for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from monarch_hpc.wire.casts import Spans

__all__ = ["Interval", "TreeRoutes", "branches", "contains", "narrow", "position_of", "rank_at"]

Interval = tuple[int, int]
"""Positions from the first up to, and not including, the second."""


def position_of(rank: int, root: int, num_hosts: int) -> int:
    """The position of a host in the tree of *root*."""
    return (rank - root) % num_hosts


def rank_at(position: int, root: int, num_hosts: int) -> int:
    """The host at a position in the tree of *root*."""
    return (position + root) % num_hosts


def branches(interval: Interval, own: int, fanout: int) -> list[Interval]:
    """Cut *interval* without the position *own* into at most *fanout* pieces, of sizes that differ by one at most.

    What lies before *own*, where hosts were lost, is one piece of its own.
    """
    low, high = interval
    before = [(low, own)] if low < own else []
    start, left = max(own + 1, low), fanout - len(before)
    num = high - start
    cut = [start + num * piece // left for piece in range(left + 1)]
    return before + [(a, b) for a, b in itertools.pairwise(cut) if a < b]


def narrow(hosts: Spans, interval: Interval, root: int, num_hosts: int) -> Spans:
    """Those of *hosts* whose position is in *interval*."""
    low, high = interval
    first, last = root + low, root + high  # in ranks, beyond the end of the allocation perhaps
    kept: list[tuple[int, int]] = []
    for begin, end in ((first - num_hosts, last - num_hosts), (first, last)):
        for start, stop in hosts:
            a, b = max(start, begin, 0), min(stop, end, num_hosts)
            if a < b:
                kept.append((a, b))
    return tuple(kept)


def contains(hosts: Spans, rank: int) -> bool:
    """Whether a host is among *hosts*."""
    return any(start <= rank < stop for start, stop in hosts)


class TreeRoutes:
    """To which host each piece of a tree is given: the first that can be used, and the same until it is lost.

    Args:
        usable: tells whether a host is there, as far as is known.
    """

    def __init__(self, num_hosts: int, usable: Callable[[int], bool]) -> None:
        self._num_hosts = num_hosts
        self._usable = usable
        self._chosen: dict[tuple[int, Interval], int] = {}
        self._lost: set[int] = set()

    def through(self, root: int, piece: Interval) -> int | None:
        """The host that sees to *piece*; None where there is none."""
        chosen = self._chosen.get((root, piece))
        if chosen is None:
            for position in range(*piece):
                rank = rank_at(position, root, self._num_hosts)
                if rank not in self._lost and self._usable(rank):
                    chosen = self._chosen[root, piece] = rank
                    break
        return chosen

    def lose(self, rank: int) -> None:
        """Use a host no longer, neither in the middle of a tree nor at its end; others may still reach it."""
        self._lost.add(rank)
        for key in [key for key, chosen in self._chosen.items() if chosen == rank]:
            del self._chosen[key]
