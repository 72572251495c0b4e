"""Errors of calls to many actors: one class for each family, whatever the number of ranks that failed.

A rank that fails later than the first may or may not be part of the error, because the call does not wait for it. So
the class of the error must not depend on the number of failures: `join_failures` makes a class that is caught both by
`MeshError` (or `MeshDied`) and by whatever all failed ranks raised.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_hpc.core.errors.actor import ActorError, SupervisionError
from monarch_hpc.core.errors.joint import copy_as
from monarch_hpc.core.errors.root import MonarchError
from monarch_hpc.core.errors.summary import details_of, summarize
from monarch_hpc.core.text.description import notes_of

__all__ = ["CallFailed", "MeshDied", "MeshError", "join_failures"]

_ANCESTORS: Any = vars(type)["__mro__"]
"""The descriptor itself: a metaclass may define an attribute of that name with any behaviour."""


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


def join_failures(endpoint: str, failures: Mapping[int, BaseException]) -> BaseException:
    """Return the error of a call with these *failures*: a `MeshDied` if one of them is a death, else a `MeshError`.

    Failures that are neither, such as `SpawnError`, have one cause: the first is returned as it is.
    """
    kinds = [type(error) for error in failures.values()]
    if any(issubclass(kind, SupervisionError) for kind in kinds):
        return _join(MeshDied, endpoint, failures)
    if any(issubclass(kind, ActorError) for kind in kinds):
        return _join(MeshError, endpoint, failures)
    return failures[min(failures)]


def _join(
    kind: type[CallFailed], endpoint: str, failures: Mapping[int, BaseException], notes: list[str] | None = None
) -> CallFailed:
    """Make an error of *kind*, and of all classes that its failures share; of *kind* alone if that is not possible."""
    error = kind(endpoint, failures)
    errors = [failures[rank] for rank in sorted(failures) if issubclass(type(failures[rank]), kind.family)]
    classes = [each for each in _shared([type(each) for each in errors]) if each not in kind.__mro__]
    if classes:
        # User code decides whether its classes have subclasses and instances, but this error must be raised.
        with contextlib.suppress(BaseException):
            error = _copy_as(kind, classes, errors[0], error)
    if notes is not None:
        error.__notes__ = notes
    return error


def _shared(classes: Sequence[type]) -> list[type]:
    """The most specific classes of which all *classes* are subclasses."""
    first, *others = [_ANCESTORS.__get__(each) for each in classes]
    shared = [each for each in first if all(each in other for other in others)]
    return [each for each in shared if not any(each is not one and each in _ANCESTORS.__get__(one) for one in shared)]


def _copy_as(kind: type[CallFailed], classes: Sequence[type], first: BaseException, error: CallFailed) -> CallFailed:
    """Return a copy of *error* that is of all *classes* too, with the attributes of *first*."""

    def reduce(self: CallFailed, _protocol: object) -> tuple[object, ...]:
        return _join, (kind, self.endpoint, self.failures, notes_of(self))

    body = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce_ex__": reduce}
    both: Any = type(kind.__name__, (kind, *classes), body)
    copy: CallFailed = copy_as(both, first)
    vars(copy).pop("__notes__", None)
    vars(copy).update(vars(error))
    return copy
