"""Errors of calls to actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from monarch_hpc.core.errors.root import MonarchError
from monarch_hpc.core.errors.summary import details_of, summarize

__all__ = [
    "ActorDied",
    "ActorError",
    "ActorFailed",
    "CallTimeout",
    "DeliveryUnknown",
    "MeshDied",
    "MeshError",
    "PortClosed",
    "ScriptFailed",
    "SpawnError",
    "SupervisionError",
]


class ActorError(MonarchError):
    """Base of the errors of calls to actors, and of endpoints' exceptions as callers get them.

    For the latter see `actor.messages.remote_error`.
    """

    exit_code = 1


class ActorFailed(ActorError):
    """An endpoint raised on one rank, and its exception could not be pickled.

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


class SupervisionError(ActorError, RuntimeError):
    """Base of the errors that callers get when the actor, its proc or its host is gone."""


class ActorDied(SupervisionError):
    """The actor cannot answer: it, its proc or its host is gone.

    Args:
        where: actor, rank and host.
        cause: why, as text: exit code, signal, failed constructor, lost host.
    """

    def __init__(self, where: str, cause: str) -> None:
        super().__init__(where, cause)
        self.where = where
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.where} died: {self.cause}"


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


class CallTimeout(ActorError, TimeoutError):
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


class PortClosed(ActorError):
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


class MeshError(ActorError):
    """Several ranks of one call failed.

    The message names the exception of the first rank and those that differ from it. The first one's remote traceback
    is added as a note, as for the exception of a single rank.

    Args:
        where: actor mesh and endpoint.
        failures: the exception of each failed rank, by rank.
    """

    def __init__(self, where: str, failures: Mapping[int, BaseException]) -> None:
        super().__init__(where, dict(failures))
        self.where = where
        self.failures = dict(failures)
        if self.failures and (details := details_of(min(self.failures.items())[1])):
            self.add_note(details)

    def __str__(self) -> str:
        return f"{self.where} failed on {len(self.failures)} ranks; {summarize(self.failures)}"


class MeshDied(MeshError, SupervisionError):
    """Several ranks of one call are gone; otherwise as `MeshError`."""


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


class SpawnError(ActorError):
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
