"""Numbers for the head's links, by which its state names them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from monarch_hpc.agent.head.link import Link

__all__ = ["NO_PEER", "HeadPeers"]

NO_PEER = 0
"""Number of all links that no event has named yet."""


class HeadPeers:
    """The peers that the state names: agents, members of runs, requesters of meshes."""

    def __init__(self) -> None:
        self._numbers: dict[Link, int] = {}
        self._links: dict[int, Link] = {}
        self._next = itertools.count(1)

    @property
    def links(self) -> Mapping[int, Link]:
        """Number -> link."""
        return self._links

    def add(self, link: Link) -> int:
        """Return the number of *link*, which gets one if it has none; numbers are never given twice."""
        if link not in self._numbers:
            number = self._numbers[link] = next(self._next)
            self._links[number] = link
        return self._numbers[link]

    def number(self, link: Link) -> int:
        """Return the number of *link*; `NO_PEER` if it has none."""
        return self._numbers.get(link, NO_PEER)

    def of(self, numbers: Iterable[int]) -> list[Link]:
        """The links with these numbers."""
        return [self._links[number] for number in numbers]

    def known(self, numbers: Iterable[int]) -> list[Link]:
        """The links with these numbers that have not ended."""
        return [self._links[number] for number in numbers if number in self._links]

    def forget(self, link: Link) -> None:
        """Remove a link that has ended."""
        self._links.pop(self._numbers.pop(link, NO_PEER), None)
