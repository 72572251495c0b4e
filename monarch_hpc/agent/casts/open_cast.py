"""One cast under way, as an agent keeps it: who behind it has answered, and what has not been sent up yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from monarch_hpc.agent.casts.reduction import Reduction
from monarch_hpc.wire.casts import Note, Spans

__all__ = ["Branch", "OpenCastState"]


U = TypeVar("U")


@dataclass(slots=True)
class Branch:
    """What one other agent sees to.

    Attributes:
        answered: all its answers have come.
        done: all its actors have handled the cast.
    """

    hosts: Spans
    answered: bool
    done: bool = False


@dataclass(slots=True)
class OpenCastState(Generic[U]):
    """One cast under way.

    Attributes:
        upstream: whom the notes go to.
        answered: whether there are to be answers.
        places: of the procs of this host, by incarnation.
        unanswered: those of them whose answer is missing.
        unhandled: those of them whose actor has not handled the cast.
        branches: by rank of the host.
        reduction: combines the answers; None if they go up as they are.
        notes: what waits to be sent.
        waiting_bytes: how much that is.
        holding: a timer runs that will send it.
        last, done: that this is the last answer, and that all is handled, was said.
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
        """Whether every actor has handled it."""
        return not self.unhandled and all(branch.done for branch in self.branches.values())
