"""Cuts the connections of gloo, whose own abort does nothing: after a cut, nothing comes into tensors any more.

And closes its listeners to strangers, whose connections it keeps for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct

__all__ = ["admit_connections", "cut_connections", "listening_ports"]

_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""SO_ATTACH_FILTER and SO_DETACH_FILTER of asm-generic/socket.h, which Python does not name."""

_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction (BPF_RET | BPF_K): take no byte of any packet."""


def listening_ports() -> set[int]:
    """The ports on which this process listens for TCP connections."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _opened(descriptor) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.add(int(one.getsockname()[1]))
    return found


def cut_connections(ports: set[int]) -> int:
    """Shut down the TCP connections of this process from or to one of *ports*; return their number.

    gloo accepts on its listener and dials those of its peers, so that either end of each of its connections has one of
    these ports. Other connections of the process are left alone.
    """
    num = 0
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _opened(descriptor) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                continue
            if {int(one.getsockname()[1]), int(one.getpeername()[1])} & ports:
                one.shutdown(socket.SHUT_RDWR)
                num += 1
    return num


def admit_connections(ports: set[int], admitted: bool) -> None:
    """Let the listeners of this process on *ports* answer, or drop what arrives, as if the network had lost it.

    Connections that have been made are not touched. Newer kernels leave filters to root: there, listeners stay as they
    are.
    """
    code = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    program = struct.pack("@HP", 1, ctypes.addressof(code))
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), _opened(descriptor) as one:
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and int(one.getsockname()[1]) in ports:
                if admitted:
                    one.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
                else:
                    one.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def _opened(descriptor: str) -> socket.socket:
    """A second descriptor of a TCP socket.

    Raises:
        OSError: it is not one.
    """
    if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
        raise OSError("not a socket")
    one = socket.socket(fileno=os.dup(int(descriptor)))
    if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
        one.close()
        raise OSError("not a TCP socket")
    return one
