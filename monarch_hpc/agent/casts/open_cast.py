"""An agent's state of one cast in flight: missing answers, and notes not yet sent upstream."""

from __future__ import annotations

from dataclasses import field
from typing import Generic, TypeVar

from monarch_hpc.agent.casts.reduction import Reduction
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.casts import Note, Spans

__all__ = ["Branch", "OpenCastState"]


U = TypeVar("U")


@dataclass(slots=True)
class Branch:
    """The part of a cast that was forwarded to one other agent.

    Attributes:
        answered: whether all its answers have arrived.
        done: whether all its actors have handled the cast.
    """

    hosts: Spans
    answered: bool
    done: bool = False


@dataclass(slots=True)
class OpenCastState(Generic[U]):
    """One cast in flight.

    Attributes:
        upstream: receiver of the notes.
        answered: whether the cast is to be answered.
        places: places of this host's procs in the target, by incarnation.
        unanswered: incarnations of procs whose answer is missing.
        unhandled: incarnations of procs whose actor has not handled the cast.
        branches: forwarded parts, by rank of the host.
        reduction: combines the answers; None if they are passed on unchanged.
        notes: notes not sent yet.
        waiting_bytes: their size.
        holding: whether a timer is running that will send them.
        last, done: whether the last answer, and the end of all handling, were reported.
    """

    upstream: U
    answered: bool
    places: dict[int, int] = field(default_factory=dict)
    unanswered: set[int] = field(default_factory=set)
    unhandled: set[int] = field(default_factory=set)
    branches: dict[int, Branch] = field(default_factory=dict)
    reduction: Reduction | None = None
    notes: list[Note] = field(default_factory=list)
    waiting_bytes: int = 0
    holding: bool = False
    last: bool = False
    done: bool = False

    @property
    def all_answered(self) -> bool:
        """Whether no answer is missing."""
        return not self.unanswered and all(branch.answered for branch in self.branches.values())

    @property
    def all_done(self) -> bool:
        """Whether every actor has handled the cast."""
        return not self.unhandled and all(branch.done for branch in self.branches.values())
