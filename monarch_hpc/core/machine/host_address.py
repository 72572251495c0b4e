"""Resolves host names, even on machines that cannot resolve `localhost` or their own name.

Both are missing from /etc/hosts in minimal containers and on some compute nodes, and name servers lack them, too.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from monarch_hpc.core.machine.interfaces import choose_interfaces, read_interfaces

__all__ = ["resolve_host"]

# RFC 6761: this name is loopback, whatever a resolver says.
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}


def resolve_host(
    name: str,
    family: socket.AddressFamily = socket.AF_UNSPEC,
    *,
    own_name: Callable[[], str] = socket.gethostname,
    look_up: Callable[..., Sequence[tuple[object, object, object, object, tuple[object, ...]]]] = socket.getaddrinfo,
) -> list[str]:
    """Return the IP addresses of a host, best first.

    If this machine's own name cannot be resolved, the result is the IPv4 addresses of its routing interfaces.

    Args:
        name: host name, or an IP address.
        family: address family; both by default.
        own_name: returns this machine's name.
        look_up: same interface as `socket.getaddrinfo`.

    Raises:
        OSError: the name has no address of this family.
    """
    try:
        found = look_up(name, None, family, socket.SOCK_STREAM)
    except OSError:
        if name == "localhost":
            return [_LOOPBACK.get(family, _LOOPBACK[socket.AF_INET])]
        if name == own_name() and family != socket.AF_INET6:
            return list(choose_interfaces(read_interfaces(), (), local=False).values())
        raise
    addresses = [str(address[0]) for *_, address in found]
    # Link-local addresses have a scope (%), and are useless on other machines.
    return list(dict.fromkeys(address for address in addresses if "%" not in address))
