"""Joins the failures of several ranks of one call into one error, of a class that all of them share."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from monarch_hpc.core.errors.actor import ActorError, SupervisionError
from monarch_hpc.core.errors.call import CallFailed, MeshDied, MeshError
from monarch_hpc.core.errors.copied import copy_as
from monarch_hpc.core.text.description import notes_of

__all__ = ["join_failures"]

_ANCESTORS: Any = vars(type)["__mro__"]
"""The descriptor itself: a metaclass may define an attribute of that name with any behaviour."""


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
