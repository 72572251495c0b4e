"""Parses and renders addresses (``tcp://address:port``, a literal IP address), and makes the sockets that use them."""

from __future__ import annotations

import errno
import ipaddress
import os
import random
import socket
from socket import socket as new_socket  # by now: libraries replace it in `socket`
from urllib.parse import urlsplit

from monarch_hpc.core.errors import PeerLost

__all__ = [
    "FORWARD_PREFIX",
    "RELAY_PREFIX",
    "begin_connect",
    "bind_to",
    "bind_within",
    "make_socket",
    "parse_address",
    "render_address",
    "tune",
]

FORWARD_PREFIX = "via+"
"""Prefix of the address of a process that forwards to another process."""


RELAY_PREFIX = "relay+"
"""Prefix of an address that was reached through the relay."""


def make_socket(host: str) -> socket.socket:
    """Make a non-blocking TCP socket for the address family of *host*, an IP address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return new_socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def bind_to(host: str, port: int) -> socket.socket:
    """Make a socket that is bound to *port* of *host*; 0 for a free one.

    Raises:
        PeerLost: it cannot be bound.
    """
    sock = make_socket(host)
    try:
        if port:  # connections of an earlier listener may be left
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise PeerLost(host, f"cannot listen there: {error.strerror}") from error
    return sock


def bind_within(host: str, port_range: str) -> socket.socket:
    """Make a socket that listens on a free port of *host*, of a range ``LOW-HIGH``.

    Raises:
        PeerLost: none is free, or the host has no such address.
    """
    low, high = map(int, port_range.split("-"))
    num_ports = high - low + 1
    first = random.randrange(num_ports)  # not all processes of a host try the same ones
    for at in range(num_ports):
        sock = make_socket(host)
        try:
            # Connections of an earlier listener may be left, and a range has few ports. Of two sockets that are bound
            # with this option only one can listen, so that is tried here.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, low + (first + at) % num_ports))
            sock.listen()
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise PeerLost(host, f"cannot listen there: {error.strerror}") from error
        else:
            return sock
    raise PeerLost(host, f"cannot listen there: no port of {port_range} is free (config key fabric.port_range)")


def tune(sock: socket.socket) -> None:
    """Disable Nagle's algorithm, so that small records leave at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def begin_connect(address: str) -> socket.socket:
    """Begin to connect to *address*; the socket becomes writable when it has connected or failed.

    Raises:
        PeerLost: *address* is malformed.
        OSError: the connection failed immediately.
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
    """Render a socket's name as an address."""
    host, port = name[0], name[1]
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Return the IP address and port of *address*.

    Raises:
        PeerLost: *address* is malformed, so it cannot be reached. Host names are refused, since resolving one may block
            for seconds; so are addresses with a zone such as ``%eth0``, because a zone is a name too.
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
