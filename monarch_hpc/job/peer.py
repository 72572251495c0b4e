"""Finds the user at the other end of a connection within this machine, from the kernel's tables."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from monarch_hpc.agent.procs.mpi_task import peer_uid

__all__ = ["OwnerTables", "Owners", "find_owner", "parse_owners", "peers_owner"]

Owners = Mapping[tuple[str, str], int]
"""User ids of sockets, by local and remote address in the kernel's notation."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Columns of these tables, see proc(5)."""

_MAPPED = b"\0" * 10 + b"\xff\xff"
"""Prefix of IPv4 addresses mapped to IPv6."""


class OwnerTables:
    """The kernel's socket tables, kept open so that they can be read even when no file descriptor is left."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._tables = []
        for path in _TABLES:
            with contextlib.suppress(FileNotFoundError):  # a machine without IPv6
                self._tables.append(self._open.enter_context(path.open()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def read(self) -> Owners:
        """Read the tables. It takes milliseconds, so read them once for all connections accepted so far."""
        owners: dict[tuple[str, str], int] = {}
        for table in self._tables:
            table.seek(0)
            owners.update(parse_owners(table))
        return owners


def parse_owners(lines: Iterable[str]) -> Owners:
    """Parse the lines of a socket table; the user is -1 for a socket that no process has open any more."""
    owners: dict[tuple[str, str], int] = {}
    for line in lines:
        words = line.split()
        if len(words) > _INODE and words[_UID].isdecimal():
            # For such sockets (inode 0) the kernel shows root as the user.
            owners[words[_LOCAL], words[_REMOTE]] = int(words[_UID]) if words[_INODE] != "0" else -1
    return owners


def peers_owner(sock: socket.socket, owners: Owners) -> int | None:
    """The user at the other end of *sock*, see `find_owner`."""
    if sock.family is socket.AF_UNIX:
        return peer_uid(sock)
    return find_owner(sock.getsockname()[:2], sock.getpeername()[:2], owners)


def find_owner(here: tuple[str, int], there: tuple[str, int], owners: Owners) -> int | None:
    """The user at the other end of a connection; None if that is another machine, -1 if the user is not known.

    Args:
        here: address and port of our end.
        there: address and port of the other end.
        owners: the tables, as returned by `OwnerTables.read`.
    """
    for mapped in (False, True):
        owner = owners.get((_render(there, mapped=mapped), _render(here, mapped=mapped)))
        if owner is not None:
            return owner
    far = _pack(there[0])
    same_machine = far == _pack(here[0]) or far[:1] == b"\x7f" or far == b"\0" * 15 + b"\1"
    return -1 if same_machine else None


def _pack(address: str) -> bytes:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.inet_pton(family, address.partition("%")[0]).removeprefix(_MAPPED)


def _render(end: tuple[str, int], *, mapped: bool) -> str:
    packed = _pack(end[0])
    if mapped and len(packed) == 4:
        packed = _MAPPED + packed
    if sys.byteorder == "little":  # the kernel prints each four bytes as a number in the machine's byte order
        packed = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    return f"{packed.hex().upper()}:{end[1]:04X}"
