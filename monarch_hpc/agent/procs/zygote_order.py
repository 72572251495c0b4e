"""Messages between an agent and the processes that fork its procs."""

from __future__ import annotations

import array
import json
import socket
import struct
import sys

from monarch_hpc.core.version import __version__

__all__ = ["FDS_PER_PROC", "MAX_FDS", "receive", "render", "split", "versions"]

FDS_PER_PROC = 4
"""Descriptors of a proc: standard output, standard error, hello, memory to record into."""

MAX_FDS = 253
"""Maximum number of descriptors in one message: the kernel's SCM_MAX_FD."""

_LENGTH = struct.Struct("<I")
"""Length prefix of each message."""


def render(document: object) -> bytes:
    """Encode a message."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return _LENGTH.pack(len(body)) + body


def split(data: bytes) -> tuple[list[bytes], bytes]:
    """Split received bytes into complete messages, each without its length, and the remainder."""
    messages = []
    while len(data) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        if len(data) < end:
            break
        messages.append(data[_LENGTH.size : end])
        data = data[end:]
    return messages, data


def versions() -> list[str]:
    """The versions that two interpreters must share to exchange messages and code."""
    return [f"Python {sys.version_info.major}.{sys.version_info.minor}", f"monarch-hpc {__version__}"]


def receive(sock: socket.socket) -> tuple[bytes, list[int]] | None:
    """Receive the next message with its descriptors; None at the end."""
    fds = array.array("i")
    head = b""
    while len(head) < _LENGTH.size:
        try:
            data, ancillary, _, _ = sock.recvmsg(_LENGTH.size - len(head), socket.CMSG_SPACE(MAX_FDS * fds.itemsize))
        except ConnectionResetError:
            return None
        if not data:
            return None
        head += data
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    left = _LENGTH.unpack(head)[0]
    parts = []
    while left:
        data = sock.recv(min(left, 1 << 16))
        if not data:
            return None
        parts.append(data)
        left -= len(data)
    return b"".join(parts), list(fds)
