"""Errors of calls to many actors: one class for each family, whatever the number of ranks that failed.

A rank that fails later than the first may or may not be part of the error, because the call does not wait for it. So
the class of the error must not depend on the number of failures: `joined.join_failures` makes a class that is caught
both by `MeshError` (or `MeshDied`) and by whatever all failed ranks raised.
"""

from __future__ import annotations

from collections.abc import Mapping

from monarch_hpc.core.errors.actor import ActorError, SupervisionError
from monarch_hpc.core.errors.root import MonarchError
from monarch_hpc.core.errors.summary import details_of, summarize

__all__ = ["CallFailed", "MeshDied", "MeshError"]


class CallFailed(MonarchError):
    """Ranks of one call to a mesh failed: base of `MeshError` and `MeshDied`.

    The message names the exception of the first rank and those that differ from it. The first one's remote traceback
    is added as a note, as for the exception of a single rank.

    Args:
        endpoint: actor mesh and endpoint.
        failures: the exception of each failed rank, by rank.
    """

    family: type[BaseException] = BaseException
    """Base of the exceptions that matter most: the first of them comes first."""

    def __init__(self, endpoint: str, failures: Mapping[int, BaseException]) -> None:
        # Not by `super()`: in a class made by `join_failures`, a constructor of the user's class comes next.
        Exception.__init__(self, endpoint, dict(failures))
        self.endpoint = endpoint
        self.failures = dict(failures)
        if self.failures and (details := details_of(self._first())):
            BaseException.add_note(self, details)

    def _first(self) -> BaseException:
        return self.failures[min(self.failures, key=self._order)]

    def _order(self, rank: int) -> tuple[bool, int]:
        return not issubclass(type(self.failures[rank]), self.family), rank

    def __str__(self) -> str:
        ordered = {rank: self.failures[rank] for rank in sorted(self.failures, key=self._order)}
        num = f"{len(ordered)} ranks; first" if len(ordered) > 1 else "one rank;"
        return f"{self.endpoint} failed on {num} {summarize(ordered)}"


class MeshError(CallFailed, ActorError):
    """Endpoints raised on ranks of one call; the actors live.

    It is of the raised class as well, if all failed ranks raised one class, with the attributes of the first.
    """

    def __init__(self, endpoint: str, failures: Mapping[int, BaseException]) -> None:
        super().__init__(endpoint, failures)
        if self.failures:
            first = self._first()
            self.exception = first.exception if issubclass(type(first), ActorError) else first  # type: ignore[attr-defined]


class MeshDied(CallFailed, SupervisionError):
    """Ranks of one call are gone; others may have raised, often because of that. Otherwise as `MeshError`."""

    family = SupervisionError
