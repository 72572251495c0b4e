"""Routes of casts: the hosts of an allocation form a tree, rooted at the host where a cast enters.

Positions count the hosts from the root on, and wrap around at the end of the allocation. The host responsible for an
interval of positions keeps its own, splits the rest into at most fan-out pieces, and gives each piece to one host in
it. The pieces depend only on the interval: all casts that enter at one host take the same route to another host, and
so keep their order, whatever their targets.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from monarch_hpc.wire.casts import Spans

__all__ = ["Interval", "TreeRoutes", "branches", "contains", "narrow", "position_of", "rank_at"]

Interval = tuple[int, int]
"""A half-open interval of positions."""


def position_of(rank: int, root: int, num_hosts: int) -> int:
    """The position of a host in the tree of *root*."""
    return (rank - root) % num_hosts


def rank_at(position: int, root: int, num_hosts: int) -> int:
    """The host at a position in the tree of *root*."""
    return (position + root) % num_hosts


def branches(interval: Interval, own: int, fanout: int) -> list[Interval]:
    """Split *interval* without position *own* into at most *fanout* pieces, whose sizes differ by at most one.

    Positions before *own*, which exist where hosts were lost, form one piece.
    """
    low, high = interval
    before = [(low, own)] if low < own else []
    start, left = max(own + 1, low), fanout - len(before)
    num = high - start
    cut = [start + num * piece // left for piece in range(left + 1)]
    return before + [(a, b) for a, b in itertools.pairwise(cut) if a < b]


def narrow(hosts: Spans, interval: Interval, root: int, num_hosts: int) -> Spans:
    """The *hosts* whose position is in *interval*."""
    low, high = interval
    first, last = root + low, root + high  # as ranks, which may exceed the allocation's size
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
    """Chooses a host for each piece of a tree: the first usable one, and the same until it is lost.

    Args:
        usable: whether a host is usable, as far as is known.
    """

    def __init__(self, num_hosts: int, usable: Callable[[int], bool]) -> None:
        self._num_hosts = num_hosts
        self._usable = usable
        self._chosen: dict[tuple[int, Interval], int] = {}
        self._lost: set[int] = set()

    def through(self, root: int, piece: Interval) -> int | None:
        """The host responsible for *piece*; None if none is usable."""
        chosen = self._chosen.get((root, piece))
        if chosen is None:
            for position in range(*piece):
                rank = rank_at(position, root, self._num_hosts)
                if rank not in self._lost and self._usable(rank):
                    chosen = self._chosen[root, piece] = rank
                    break
        return chosen

    def lose(self, rank: int) -> None:
        """Stop using a host, as an inner node or as a leaf; other hosts may still reach it."""
        self._lost.add(rank)
        for key in [key for key, chosen in self._chosen.items() if chosen == rank]:
            del self._chosen[key]

    def find(self, rank: int) -> None:
        """Use a host again that was lost. Pieces that others have taken over stay with them."""
        self._lost.discard(rank)
