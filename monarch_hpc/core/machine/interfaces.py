"""Network interfaces and name of this machine, and its limit on open files."""

from __future__ import annotations

import fcntl
import resource
import socket
import struct
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from monarch_hpc.core.errors import ConfigError

__all__ = ["choose_interfaces", "host_name", "raise_file_limit", "read_interfaces"]

_SIOCGIFFLAGS, _SIOCGIFADDR = 0x8913, 0x8915
_IFF_UP = 0x1
# Bridges of containers and virtual machines have the same address on every host: a peer that dials it reaches itself.
_BRIDGES = ("docker*", "virbr*", "br-*", "cni*", "podman*", "lxc*")


def choose_interfaces(
    found: Mapping[str, str], wanted: Sequence[str], *, local: bool, side: Literal["login", "compute"] = "compute"
) -> dict[str, str]:
    """Return the interfaces to listen on, best first; never a wildcard address.

    Args:
        found: all interfaces that are up, name -> IPv4 address.
        wanted: configured names or patterns, best first; empty for all that route.
        local: whether the whole allocation is on this machine.
        side: the configuration key that *wanted* comes from, for the error.

    Raises:
        ConfigError: this machine has none of *wanted*.
    """
    loopback = {name: address for name, address in found.items() if address.startswith("127.")}
    if local:
        return dict(list(loopback.items())[:1]) or {"lo": "127.0.0.1"}
    if wanted:
        chosen = {name: found[name] for pattern in wanted for name in found if fnmatchcase(name, pattern)}
        if not chosen:
            known = ", ".join(sorted(found)) or "none"
            raise ConfigError(
                f"fabric.interfaces.{side}",
                repr(list(wanted)),
                "the configuration",
                f"no such interface on this machine; known: {known}",
            )
        return chosen
    routing = {
        name: address
        for name, address in found.items()
        if name not in loopback and not any(fnmatchcase(name, bridge) for bridge in _BRIDGES)
    }
    return routing or loopback


def raise_file_limit() -> None:
    """Raise the soft limit on open files to the hard one: there is a socket for each proc, on up to 1000 hosts."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def read_interfaces() -> dict[str, str]:
    """Return the interfaces of this machine that are up, name -> first IPv4 address, in the kernel's order."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                flags = struct.unpack_from("<H", fcntl.ioctl(sock, _SIOCGIFFLAGS, request), 16)[0]
                if flags & _IFF_UP:
                    found[name] = socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
            except OSError:
                continue  # the interface has no IPv4 address, or has just disappeared
    return found


def host_name(environment: Mapping[str, str]) -> str:
    """Return this host's name as Slurm writes it, else its short host name."""
    return environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
