"""The user at the other end of a connection on this machine, as the kernel says."""

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
"""The users of one end each: by its own address and the other end's, as the kernel writes them."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LOCAL, _REMOTE, _UID, _INODE = 1, 2, 7, 9
"""Columns of these tables, see proc(5)."""

_MAPPED = b"\0" * 10 + b"\xff\xff"
"""Begins an IPv4 address in IPv6."""


class OwnerTables:
    """The kernel's tables of sockets, kept open: they can be read when no descriptor is left for another file."""

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
        """Read them. It takes milliseconds: once for all connections that were accepted before it."""
        owners: dict[tuple[str, str], int] = {}
        for table in self._tables:
            table.seek(0)
            owners.update(parse_owners(table))
        return owners


def parse_owners(lines: Iterable[str]) -> Owners:
    """Read the lines of such a table; -1 stands for an end that no process has open any more."""
    owners: dict[tuple[str, str], int] = {}
    for line in lines:
        words = line.split()
        if len(words) > _INODE and words[_UID].isdecimal():
            # The kernel shows root as its user then.
            owners[words[_LOCAL], words[_REMOTE]] = int(words[_UID]) if words[_INODE] != "0" else -1
    return owners


def peers_owner(sock: socket.socket, owners: Owners) -> int | None:
    """The user at the other end of *sock*, see `find_owner`."""
    if sock.family is socket.AF_UNIX:
        return peer_uid(sock)
    return find_owner(sock.getsockname()[:2], sock.getpeername()[:2], owners)


def find_owner(here: tuple[str, int], there: tuple[str, int], owners: Owners) -> int | None:
    """The user at the other end of a connection; None on another machine, -1 where it cannot be told on this one.

    Args:
        here: our end of it, address and port.
        there: the other end.
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
    if sys.byteorder == "little":  # each four bytes are written as a number of this machine
        packed = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
    return f"{packed.hex().upper()}:{end[1]:04X}"
