"""Which way leads to whom: directly, through another process, or through the relay; learned from what worked."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.transport.address import FORWARD_PREFIX, RELAY_PREFIX, parse_address

__all__ = ["RouteKind", "Routes"]


class RouteKind(enum.Enum):
    """How a peer is reached; the value stands before its address."""

    DIRECT = ""
    FORWARD = FORWARD_PREFIX
    RELAY = RELAY_PREFIX


class Routes:
    """What one process knows of the ways to other hosts.

    Direct ways are always tried, and at once: they cost nothing where they lead nowhere, and a network that heals is
    used again. The others wait a moment, but not where they were the one that led to the same host before, or to
    all others so far.
    """

    def __init__(self) -> None:
        self._last_route: dict[str, RouteKind] = {}  # by the host's IP address
        self._worked: set[RouteKind] = set()

    def worked(self, addresses: Sequence[str], route: RouteKind) -> None:
        """Take note that *way* was the first to lead to the host with *addresses*."""
        self._worked.add(route)
        self._last_route.update(dict.fromkeys(_hosts(addresses), route))

    def indirect_at_once(self, addresses: Sequence[str]) -> bool:
        """Whether to try ways around beside the direct one from the start."""
        known = {self._last_route[host] for host in _hosts(addresses) if host in self._last_route}
        return bool(known or self._worked) and RouteKind.DIRECT not in (known or self._worked)

    @property
    def relay_may_help(self) -> bool:
        """Whether the relay may reach somebody whom nothing else does.

        It dials from the host of the head; whoever reaches that host without it can be passed on there.
        """
        return self._worked <= {RouteKind.RELAY}


def _hosts(addresses: Sequence[str]) -> list[str]:
    hosts = []
    for address in addresses:
        try:
            hosts.append(parse_address(address)[0])
        except PeerLost:
            continue  # whoever dials it says so
    return hosts
