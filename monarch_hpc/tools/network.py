"""Resolves host names to the kind of address that a program asks for. As `monarch.tools.network`."""

from __future__ import annotations

import enum
import socket

from monarch_hpc.core.arguments import check_instance, check_number, check_text
from monarch_hpc.core.machine.host_address import resolve_host

__all__ = ["AddrType", "get_ipaddr", "get_sockaddr"]


class AddrType(enum.Enum):
    """The kind of an address; `Default` prefers IPv6 if the host's name has such an address."""

    Default = enum.auto()
    IPv4 = enum.auto()
    IPv6 = enum.auto()


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


def get_ipaddr(hostname: str, port: int, addr_type: AddrType = AddrType.Default) -> str:
    """Return an IP address of a host.

    Args:
        hostname: name or address of the host.
        port: for moved programs; a number that could be a port.
        addr_type: kind of the address.

    Raises:
        OSError: the name has no address of this kind.
        TypeError: an argument of another type.
        ValueError: *port* is not in 0-65535.
    """
    check_text("hostname", hostname, filled=True)
    check_number("port", port, least=0, most=65535)
    check_instance("addr_type", addr_type, AddrType, "AddrType.IPv4, AddrType.IPv6 or AddrType.Default")
    for family in _FAMILIES[addr_type]:
        try:
            found = resolve_host(hostname, family)
        except OSError:
            continue
        if found:
            return found[0]
    raise OSError(f"host {hostname} has no {addr_type.name} address")


def get_sockaddr(hostname: str, port: int) -> str:
    """Return ``address:port`` of a host, an IPv6 address in brackets.

    Raises:
        OSError, TypeError, ValueError: as for `get_ipaddr`.
    """
    address = get_ipaddr(hostname, port)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
