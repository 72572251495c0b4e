"""Messages about links, through which procs of two allocations of one program call each other."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["LinkGiven", "LinkOver", "LinkRoute", "LinkTaken"]


@dataclass(frozen=True, slots=True)
class LinkGiven(Message):
    """Program to proc: trust the procs of another allocation of this program. To an agent: take their casts.

    Args:
        allocation: the other allocation.
        link: the link's name, 32 hexadecimal digits.
        key: the link's key in hexadecimal digits. No allocation's key travels in this message.
        run: the program's run on the receiver's allocation; the only one whose procs an agent lets them cast to.
    """

    allocation: str
    link: str
    key: str
    run: str


@dataclass(frozen=True, slots=True)
class LinkTaken(Message):
    """Proc or agent to program: the link can be used."""

    link: str


@dataclass(frozen=True, slots=True)
class LinkRoute(Message):
    """Program to proc: an agent of another allocation takes its casts.

    Args:
        allocation: the other allocation.
        run: the program's run there.
        addresses: those of the agent.
    """

    allocation: str
    run: str
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class LinkOver(Message):
    """Program to proc or agent: the other allocation has ended, or the program has left it; no longer trust its procs.

    Args:
        link: the link's name, 32 hexadecimal digits.
    """

    allocation: str
    link: str
    cause: str
