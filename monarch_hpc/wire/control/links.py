"""Messages about links, through which procs of two allocations of one program call each other."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["LinkGiven", "LinkOver", "LinkTaken"]


@dataclass(frozen=True, slots=True)
class LinkGiven(Message):
    """Program to proc: trust the procs of another allocation of this program.

    Args:
        allocation: the other allocation.
        link: the link's name, 32 hexadecimal digits.
        key: the link's key in hexadecimal digits. No allocation's key travels in this message.
    """

    allocation: str
    link: str
    key: str


@dataclass(frozen=True, slots=True)
class LinkTaken(Message):
    """Proc to program: the link can be used."""

    link: str


@dataclass(frozen=True, slots=True)
class LinkOver(Message):
    """Program to proc: the other allocation has ended, or the program has left it; its procs are no longer trusted."""

    allocation: str
    cause: str
