"""Learns the route to each host from what worked: direct, through a forwarder, or through the relay."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from monarch_hpc.core.errors import PeerLost
from monarch_hpc.transport.address import FORWARD_PREFIX, RELAY_PREFIX, parse_address

__all__ = ["RouteKind", "Routes"]


class RouteKind(enum.Enum):
    """A kind of route to a peer; the value is the prefix of its address."""

    DIRECT = ""
    FORWARD = FORWARD_PREFIX
    RELAY = RELAY_PREFIX


class Routes:
    """The routes of one process to other hosts.

    Direct routes are always tried, and at once: they cost nothing where they fail, and a network that heals is used
    again. Indirect routes wait a moment, unless one of them was the last to reach the same host, or only indirect
    routes have reached any host so far.
    """

    def __init__(self) -> None:
        self._last_route: dict[str, RouteKind] = {}  # by the host's IP address
        self._worked: set[RouteKind] = set()

    def worked(self, addresses: Sequence[str], route: RouteKind) -> None:
        """Record that *route* won the race to the host with *addresses*."""
        self._worked.add(route)
        self._last_route.update(dict.fromkeys(_hosts(addresses), route))

    def indirect_at_once(self, addresses: Sequence[str]) -> bool:
        """Whether to try indirect routes beside the direct one from the start."""
        known = {self._last_route[host] for host in _hosts(addresses) if host in self._last_route}
        return bool(known or self._worked) and RouteKind.DIRECT not in (known or self._worked)

    @property
    def relay_may_help(self) -> bool:
        """Whether the relay may reach a process that nothing else reaches.

        The relay dials from the head's host; a process that reaches that host without the relay can be forwarded there.
        """
        return self._worked <= {RouteKind.RELAY}


def _hosts(addresses: Sequence[str]) -> list[str]:
    hosts = []
    for address in addresses:
        try:
            hosts.append(parse_address(address)[0])
        except PeerLost:
            continue  # the dial reports it
    return hosts
