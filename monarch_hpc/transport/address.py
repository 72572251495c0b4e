"""Addresses as they stand in rosters and files (``tcp://address:port``, a literal IP address), and sockets for them."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from urllib.parse import urlsplit

from monarch_hpc.core.errors import PeerLost

__all__ = [
    "FORWARD_PREFIX",
    "RELAY_PREFIX",
    "begin_connect",
    "make_socket",
    "parse_address",
    "render_address",
    "tune",
]

FORWARD_PREFIX = "via+"
"""Before the address of a process that passes on what is for another one."""


RELAY_PREFIX = "relay+"
"""Before an address that was reached through the relay."""


def make_socket(host: str) -> socket.socket:
    """A non-blocking TCP socket of the family of the IP address *host*."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def tune(sock: socket.socket) -> None:
    """Send small records at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def begin_connect(address: str) -> socket.socket:
    """A socket that connects to *address*: writable when it has, or has failed.

    Raises:
        PeerLost: not an address.
        OSError: it cannot even begin.
    """
    host, port = parse_address(address)
    sock = make_socket(host)
    try:
        tune(sock)
        status = sock.connect_ex((host, port))
        if status not in (0, errno.EINPROGRESS):
            raise OSError(status, os.strerror(status))
    except OSError:
        sock.close()
        raise
    return sock


def render_address(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """A socket's name as an address."""
    host, port = name[0], name[1]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """The IP address and the port of *address*.

    Raises:
        PeerLost: it is none: nobody can be there. Names are refused, since looking one up may block for seconds;
            so are addresses with a zone, ``%eth0``, which is a name too.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
        if parts.scheme == "tcp" and host and port and "%" not in host:
            ipaddress.ip_address(host)
            return host, port
    except ValueError:
        pass
    raise PeerLost(address, "not an address of the form tcp://address:port")
