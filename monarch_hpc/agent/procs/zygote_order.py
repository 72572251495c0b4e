"""Messages between an agent and the processes that fork its procs."""

from __future__ import annotations

import array
import json
import socket
import struct
import sys

from monarch_hpc.core.version import __version__

__all__ = ["FDS_PER_PROC", "LENGTH", "MAX_FDS", "receive", "render", "versions"]

FDS_PER_PROC = 4
"""Standard output, standard error, hello, memory to record into."""


MAX_FDS = 253
"""So many descriptors the kernel passes at once: SCM_MAX_FD."""


LENGTH = struct.Struct("<I")
"""Before each message between an agent and those who fork its procs."""


def render(document: object) -> bytes:
    """Return one message between agent and zygote."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return LENGTH.pack(len(body)) + body


def versions() -> list[str]:
    """What two interpreters must have in common to understand each other's messages and code."""
    return [f"Python {sys.version_info.major}.{sys.version_info.minor}", f"monarch-hpc {__version__}"]


def receive(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Return the next message and the descriptors that came with it; None at the end."""
    fds = array.array("i")
    head = b""
    while len(head) < LENGTH.size:
        try:
            data, ancillary, _, _ = sock.recvmsg(LENGTH.size - len(head), socket.CMSG_SPACE(MAX_FDS * fds.itemsize))
        except ConnectionResetError:
            return None
        if not data:
            return None
        head += data
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    left = LENGTH.unpack(head)[0]
    parts = []
    while left:
        data = sock.recv(min(left, 1 << 16))
        if not data:
            return None
        parts.append(data)
        left -= len(data)
    return b"".join(parts), list(fds)
