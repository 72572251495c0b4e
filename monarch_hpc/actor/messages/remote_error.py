"""Makes remote exceptions catchable both by their original class and by `ActorError`.

Callers write ``except ValueError`` if they know what an endpoint raises; programs written for Monarch write ``except
ActorError``. So an exception from another actor gets a class derived from both, with the name and the attributes of the
original, and pickled as the original. Only ``type(error) is ValueError`` can see the difference.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, cast

from monarch_hpc.core.errors import ActorError, ActorFailed, SupervisionError
from monarch_hpc.core.errors.copied import copy_as
from monarch_hpc.core.text.description import class_name, text_of, trace_of

__all__ = ["as_actor_error", "as_raised"]

_NUM_CLASSES = 1024
"""Number of derived classes that are cached; a program that creates more classes at run time only loses speed."""

_RAISED = "_monarch_raised"
"""Attribute of a derived class: the original one."""

_CLASS: Any = vars(object)["__class__"]
"""The descriptor itself: an exception may define an attribute of that name with any behaviour."""


def as_actor_error(error: Exception, where: str, trace: str | None = None) -> ActorError:
    """Return *error*, or a copy, as an `ActorError` too; where that is not possible, an `ActorFailed` that wraps it.

    Wrapped are exceptions of classes without subclasses, and the deaths of other actors that an endpoint did not
    catch: the actor that raised them lives, so that they must not be taken for its own.

    Args:
        error: the exception.
        where: the place where it was raised, in words.
        trace: its formatted traceback; None to format it.
    """
    cls: Any = type(error)  # `isinstance` would run user code
    if not issubclass(cls, SupervisionError):
        if issubclass(cls, ActorError):
            return cast(ActorError, error)
        with contextlib.suppress(BaseException):  # metaclasses are user code; *error* matters, not theirs
            return _as_both(error, cls)
    wrapped = ActorFailed(where, class_name(error), text_of(error), trace_of(error) if trace is None else trace)
    wrapped.exception = error
    return wrapped


def as_raised(error: ActorError) -> Exception:
    """Return what the endpoint raised, of its own class alone: undoes `as_actor_error`, as far as that is possible."""
    cls: Any = vars(type(error)).get(_RAISED)
    if cls is None:
        raised: object = error.exception
        return raised if isinstance(raised, Exception) else error
    with contextlib.suppress(TypeError):
        _CLASS.__set__(error, cls)
        return error
    return cast(Exception, copy_as(cls, error))


def _as_both(error: Exception, cls: Any) -> ActorError:
    # Not cached: a metaclass may define any two classes as equal.
    both = _both(cls) if type(cls) is type else _both.__wrapped__(cls)
    with contextlib.suppress(TypeError):  # not possible for instances of classes written in C, or with slots
        _CLASS.__set__(error, both)
        return cast(ActorError, error)
    return cast(ActorError, copy_as(both, error))


@functools.lru_cache(_NUM_CLASSES)
def _both(cls: type[Exception]) -> type[Exception]:
    def reduce(self: Exception, protocol: Any) -> Any:
        reduced: Any = cls.__reduce_ex__(self, protocol)
        made, args, *others = reduced
        return (cls if made is both else made, tuple(cls if each is both else each for each in args), *others)

    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__reduce_ex__": reduce,
        _RAISED: cls,
    }
    # `Exception` itself is a base of `ActorError`, and cannot precede it.
    bases = (ActorError,) if any(cls is each for each in ActorError.__mro__) else (cls, ActorError)
    both = type(cls.__name__, bases, body)
    return both
