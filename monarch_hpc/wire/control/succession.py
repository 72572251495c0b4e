"""Messages by which agents, and the owner of a run, elect the head of the next term, see `supervision.succession`.

Incarnations are decimal strings: JSON has no u64. That of the sender is the channel's peer's.
"""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["Acknowledge", "Announce", "AskVoice", "GiveVoice", "Resign", "Rules"]


@dataclass(frozen=True, slots=True)
class Announce(Message):
    """Head to agents and the owner of a run: the electorate; see `supervision.electorate.Electorate`.

    Args:
        hosts: the voices of the hosts, by rank.
        before: those before a change that is not complete; empty if there is none.
        heeds_slurm: see `Electorate`; *closed* likewise.
        owner: the voice of the owner of the oldest open run; 0 if that has none. *owner_before* likewise.
    """

    term: int
    number: int
    hosts: list[str]
    before: list[str]
    heeds_slurm: bool
    closed: bool = False
    owner: str = "0"
    owner_before: str = "0"


@dataclass(frozen=True, slots=True)
class Acknowledge(Message):
    """Agent or owner to head: the electorate of this term and number is known."""

    term: int
    number: int


@dataclass(frozen=True, slots=True)
class AskVoice(Message):
    """Candidate to agents and the owner: give me your voice for *term*; I count by the electorate of this number."""

    term: int
    electorate_term: int
    electorate_number: int


@dataclass(frozen=True, slots=True)
class GiveVoice(Message):
    """Agent or owner to candidate: its voice for *term*, if *given*; *known_term* is the highest that it knows."""

    term: int
    given: bool
    known_term: int


@dataclass(frozen=True, slots=True)
class Rules(Message):
    """Head of *term*, or an agent that follows it, to agents and the owner: this host's agent is the head.

    Args:
        head: the head's incarnation.
        rank: rank of its host.
        addresses: those of its agent.
        withdrawn: the sender has withdrawn its candidacies of the terms up to this one; 0 for none.
    """

    term: int
    head: str
    rank: int
    addresses: list[str]
    withdrawn: int = 0


@dataclass(frozen=True, slots=True)
class Resign(Message):
    """Head to agents: it ends, because of *why*, and gives no more orders; those of the electorate elect its heir."""

    why: str
