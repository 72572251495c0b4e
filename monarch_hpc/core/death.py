"""The end of an actor, a proc or a host, as callers get it: what kind of end, its cause in words, and where."""

from __future__ import annotations

import enum

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.process.exit import Exit

__all__ = ["EXIT_CODES", "Death", "DeathKind"]


class DeathKind(enum.StrEnum):
    """What ended an actor, a proc or a host. Programs decide by it: some ends are worth another try, others are not."""

    EXIT = "exit"
    """Its process exited, with a code."""
    SIGNAL = "signal"
    """A signal ended its process, or has stopped it for too long."""
    OOM = "oom"
    """The kernel, or Slurm, ended it because its memory was used up."""
    TIME_LIMIT = "time-limit"
    """The job reached its time limit."""
    PREEMPTED = "preempted"
    """Slurm gave the hosts to a job of higher priority."""
    CANCELLED = "cancelled"
    """The job, its step or its use of a host was cancelled: by its user, or an administrator."""
    NODE_FAILURE = "node-failure"
    """Slurm says that the host does not work."""
    NETWORK = "network"
    """The host is silent, and nothing else is known to be wrong with it."""
    FENCED = "fenced"
    """It may live, but was given up, or another process has taken its place: whatever it says is refused."""
    GPU = "gpu"
    """Its GPU failed: an Xid or ECC error."""
    STOPPED = "stopped"
    """It was asked to end."""
    RAISED = "raised"
    """The actor's own code raised; its process lives."""
    UNKNOWN = "unknown"
    """The cause could not be determined."""

    @classmethod
    def parse(cls, text: str) -> DeathKind:
        """Return the kind that is written as *text*; `UNKNOWN` for one that this version does not know."""
        try:
            return cls(text)
        except ValueError:
            return cls.UNKNOWN


EXIT_CODES = {
    DeathKind.FENCED: 77,
    DeathKind.NODE_FAILURE: 78,
    DeathKind.TIME_LIMIT: 79,
    DeathKind.PREEMPTED: 79,
}
"""Exit codes of runs that ended for a reason outside the program, after which the same command may succeed."""


@dataclass(frozen=True, slots=True)
class Death:
    """One end.

    Attributes:
        cause: in words; with what the process wrote last, if that is known.
        host: name of the host; empty if it is unknown.
        rank: the proc's rank in its mesh; -1 if it is unknown.
        last_lines: what the process wrote last.
        expected: whether it was asked to end, by whomever and for whatever reason.
        host_lost: whether its host is gone.
        running: the calls that it was handling, as far as they have callers that wait: incarnation and number of each.
    """

    kind: DeathKind
    cause: str
    host: str = ""
    rank: int = -1
    last_lines: tuple[str, ...] = ()
    expected: bool = False
    host_lost: bool = False
    running: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of_exit(cls, how: Exit) -> Death:
        """The end of a process, as its parent has seen it."""
        if how.oom:
            return cls(DeathKind.OOM, str(how))
        return cls(DeathKind.EXIT if how.signal is None else DeathKind.SIGNAL, str(how))
