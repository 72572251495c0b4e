"""Routes of casts: the hosts of an allocation form a tree, rooted at the host where a cast enters.

The root has position 0, and the other hosts follow by rank: the position of a host does not depend on the number of
hosts, on which agents may disagree for a moment when the allocation grows. The host responsible for an interval of
positions keeps its own, splits the rest into at most fan-out pieces, and gives each piece to one host in it. The pieces
depend only on the interval: all casts that enter at one host take the same route to another host, and so keep their
order, whatever their targets. Hosts that join later are an interval beside that of the others, see `growth`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from monarch_hpc.wire.casts import Spans

__all__ = ["Interval", "TreeRoutes", "branches", "contains", "growth", "narrow", "position_of", "rank_at"]

Interval = tuple[int, int]
"""A half-open interval of positions."""


def position_of(rank: int, root: int) -> int:
    """The position of a host in the tree of *root*."""
    if rank == root:
        return 0
    return rank + 1 if rank < root else rank


def rank_at(position: int, root: int) -> int:
    """The host at a position in the tree of *root*."""
    if position == 0:
        return root
    return position - 1 if position <= root else position


def growth(sizes: Sequence[int]) -> list[Interval]:
    """The intervals of a tree whose number of hosts has grown by *sizes*, the first one first.

    The root passes a cast on for each of them by itself, so that what it has sent to a host before takes no other way
    than what it sends after.
    """
    return list(itertools.pairwise([0, *sizes]))


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


def narrow(hosts: Spans, interval: Interval, root: int) -> Spans:
    """The *hosts* whose position is in *interval*."""
    low, high = interval
    # As ranks: those below the root, the root, those above it.
    parts = [(max(low, 1) - 1, min(high - 1, root)), (max(low, root + 1), high)]
    if low <= 0 < high:
        parts.insert(1, (root, root + 1))
    kept: list[tuple[int, int]] = []
    for begin, end in parts:
        for start, stop in hosts:
            a, b = max(start, begin), min(stop, end)
            if a < b and kept and kept[-1][1] == a:
                kept[-1] = kept[-1][0], b
            elif a < b:
                kept.append((a, b))
    return tuple(kept)


def contains(hosts: Spans, rank: int) -> bool:
    """Whether a host is among *hosts*."""
    return any(start <= rank < stop for start, stop in hosts)


class TreeRoutes:
    """Chooses a host for each piece of a tree: the first usable one, and the same until it is lost.

    Args:
        usable: whether a host is usable, as far as is known.

    Attributes:
        num_hosts: the number of hosts, as far as is known; it grows.
    """

    def __init__(self, num_hosts: int, usable: Callable[[int], bool]) -> None:
        self.num_hosts = num_hosts
        self._usable = usable
        self._chosen: dict[tuple[int, Interval], int] = {}
        self._lost: set[int] = set()

    def through(self, root: int, piece: Interval) -> int | None:
        """The host responsible for *piece*; None if none is usable."""
        chosen = self._chosen.get((root, piece))
        if chosen is None:
            for position in range(piece[0], min(piece[1], self.num_hosts)):
                rank = rank_at(position, root)
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
