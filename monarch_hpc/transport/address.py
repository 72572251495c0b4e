"""Addresses as they stand in rosters and files: ``tcp://address:port``, with a literal IP address."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from monarch_hpc.core.errors import PeerLost

__all__ = ["parse_address", "render_address"]


def render_address(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """A socket's name as an address."""
    host, port = name[0], name[1]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """The IP address and the port of *address*.

    Raises:
        PeerLost: it is none: nobody can be there. Names are refused, since looking one up may block for seconds.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        if parts.scheme == "tcp" and host and port:
            ipaddress.ip_address(host)
            return host, port
    except ValueError:
        pass
    raise PeerLost(address, "not an address of the form tcp://address:port")
