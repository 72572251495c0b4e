"""Errors of calls to actors: two families that do not overlap, and what belongs to neither.

`ActorError` is what an endpoint raised: the actor lives. `SupervisionError` is a death: it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors.root import MonarchError

__all__ = [
    "ActorDied",
    "ActorError",
    "ActorFailed",
    "BootstrapFailed",
    "CallTimeout",
    "DeliveryUnknown",
    "HostLost",
    "PoisonMessage",
    "PortClosed",
    "ProcDied",
    "ScriptFailed",
    "SpawnError",
    "SupervisionError",
]


class _Itself:
    """Descriptor that gives the exception itself.

    It defines no setter: an instance attribute of the same name, which a user's class may set, takes precedence.
    """

    def __get__(self, error: object, _owner: type | None = None) -> object:
        return self if error is None else error


class ActorError(MonarchError):
    """Base of all that endpoints raise, as callers get it; the actor lives. See `actor.messages.remote_error`.

    Attributes:
        exception: the exception that was raised; of several ranks, the first one's. It is this error itself where that
            is of the raised class too, or where the raised exception could not be sent.
    """

    exit_code = 1
    if TYPE_CHECKING:
        exception: BaseException
    else:
        exception = _Itself()


class ActorFailed(ActorError):
    """An endpoint raised an exception of which no `ActorError` could be made: this describes it, or wraps it.

    The exception could not be sent, is not an `Exception`, belongs to a class without subclasses, or is a
    `SupervisionError` of another actor. It is in `exception` if it has arrived.

    Args:
        where: actor, endpoint, rank and host.
        type_name: class of the remote exception.
        message: its text.
        remote_traceback: the formatted remote traceback.
    """

    def __init__(self, where: str, type_name: str, message: str, remote_traceback: str) -> None:
        super().__init__(where, type_name, message, remote_traceback)
        self.where = where
        self.type_name = type_name
        self.message = message
        self.remote_traceback = remote_traceback

    def __str__(self) -> str:
        return f"{self.where} raised {self.type_name}: {self.message}\n{self.remote_traceback}"


class SupervisionError(MonarchError, RuntimeError):
    """Base of the errors that callers get when the actor, its proc or its host is gone; never an `ActorError`."""


class ActorDied(SupervisionError):
    """The actor cannot answer: it, its proc or its host is gone.

    Args:
        where: actor, rank and host.
        death: why; in words alone if the kind is not known.

    Attributes:
        cause: why, in words: exit code, signal, failed constructor, lost host.
    """

    def __init__(self, where: str, death: Death | str) -> None:
        super().__init__(where, death)
        self.where = where
        self.death = Death(DeathKind.UNKNOWN, death) if isinstance(death, str) else death
        self.cause = self.death.cause

    @property
    def kind(self) -> DeathKind:
        """What kind of end it was."""
        return self.death.kind

    @property
    def host(self) -> str:
        """Name of the host; empty if it is unknown."""
        return self.death.host

    @property
    def rank(self) -> int:
        """Rank of the proc in its mesh; -1 if it is unknown."""
        return self.death.rank

    @property
    def last_lines(self) -> tuple[str, ...]:
        """What the process wrote last; empty if that is unknown."""
        return self.death.last_lines

    def __str__(self) -> str:
        return f"{self.where} died: {self.cause}"


class ProcDied(ActorDied):
    """The actor's process is gone, and with it all its actors."""


class HostLost(ProcDied):
    """The actor's host is gone, and with it all its procs."""


class DeliveryUnknown(SupervisionError):
    """A call was sent but not answered, and its peer can no longer be asked.

    The endpoint may have run, at most once.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.where} may or may not have run: {self.cause}"


class CallTimeout(MonarchError, TimeoutError):
    """A call timed out; it may still run, and its answer will be dropped.

    Args:
        where: actor, rank, host and endpoint of the first rank that did not answer.
        others: the other ranks that did not answer.
        timeout_s: the limit, in seconds.
    """

    def __init__(self, where: str, others: Sequence[int], timeout_s: float) -> None:
        super().__init__(where, tuple(others), timeout_s)
        self.where = where
        self.others = tuple(others)
        self.timeout_s = timeout_s

    def __str__(self) -> str:
        more = ", ..." if len(self.others) > 8 else ""
        ranks = ", ".join(str(rank) for rank in self.others[:8])
        others = f", nor from ranks {ranks}{more}" if self.others else ""
        return f"no answer within {self.timeout_s:g} s from {self.where}{others}"


class PortClosed(MonarchError):
    """A port will deliver no more values.

    Args:
        where: the port.
        cause: why, as text.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return f"nothing comes through {self.where} any more: {self.cause}"


class ScriptFailed(ActorError):
    """A script started by `run_script` exited with a status other than 0, or was killed, on one rank.

    Args:
        where: script, rank and host.
        status: as in `subprocess`: the exit status, or -9 for signal 9.
        cause: the same as text, with the message that the script passed to `sys.exit`.
    """

    def __init__(self, where: str, status: int, cause: str) -> None:
        super().__init__(where, status, cause)
        self.where = where
        self.status = status
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.where} failed: {self.cause}"


class PoisonMessage(ActorError):
    """A call was not sent: the same message has killed one life of the proc after the other. The actor lives.

    Args:
        where: actor, endpoint, rank and host.
        num_lives: how many lives it has killed.
    """

    def __init__(self, where: str, num_lives: int) -> None:
        super().__init__(where, num_lives)
        self.where = where
        self.num_lives = num_lives

    def __str__(self) -> str:
        return (
            f"{self.where}: the same message was the only one under way when {self.num_lives} lives of a proc died in "
            "a row, and is put aside: change it, or call heal() to send it again (config key 'procs.poison_lives')"
        )


class SpawnError(MonarchError):
    """A proc could not be started.

    Args:
        host: the proc's host.
        cause: exit code, signal or the operating system's message.
        last_lines: the last lines of the proc's output.
    """

    def __init__(self, host: str, cause: str, last_lines: Sequence[str] = ()) -> None:
        super().__init__(host, cause, tuple(last_lines))
        self.host = host
        self.cause = cause
        self.last_lines = tuple(last_lines)

    def __str__(self) -> str:
        lines = "".join(f"\n    {line}" for line in self.last_lines)
        return f"no proc on {self.host}: {self.cause}{lines}"


class BootstrapFailed(SpawnError, ActorError):
    """The user's `bootstrap` function raised in a proc, which was ended; otherwise as `SpawnError`."""
