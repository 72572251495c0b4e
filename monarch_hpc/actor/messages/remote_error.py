"""Makes remote exceptions catchable both by their original class and by `ActorError`.

Callers write ``except ValueError`` if they know what an endpoint raises; programs written for Monarch write ``except
ActorError``. So an exception from another actor gets a class derived from both, with the name and the attributes of the
original, and pickled as the original. Only ``type(error) is ValueError`` can see the difference.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, cast

from monarch_hpc.core.errors import ActorError

__all__ = ["as_actor_error"]

_NUM_CLASSES = 1024
"""Number of derived classes that are cached; a program that creates more classes at run time only loses speed."""

_CLASS: Any = vars(object)["__class__"]
"""The descriptor itself: an exception may define an attribute of that name with any behaviour."""


def as_actor_error(error: BaseException) -> BaseException:
    """Return *error*, or a copy, as an `ActorError` too; unchanged if its class does not allow that."""
    cls: Any = type(error)  # `isinstance` would run user code
    if not issubclass(cls, Exception) or issubclass(cls, (ActorError, BaseExceptionGroup)):
        return error
    try:
        # Not cached: a metaclass may define any two classes as equal.
        both = _both(cls) if type(cls) is type else _both.__wrapped__(cls)
        with contextlib.suppress(TypeError):  # not possible for instances of classes written in C
            _CLASS.__set__(error, both)
            return error
        again = _again(cast(Exception, error), both)
    except BaseException:  # noqa: BLE001 user constructors and metaclasses; *error* matters, not theirs
        return error
    return again if type.__subclasscheck__(cls, type(again)) else error


def _again(error: Exception, both: type[Exception]) -> Exception:
    """Copy an exception, with another class."""
    reduced: Any = error.__reduce__()  # a tuple: class, arguments, and perhaps attributes
    if reduced[0] is not type(error):
        return error
    copy: Exception = both(*reduced[1])
    if len(reduced) > 2 and reduced[2]:
        copy.__setstate__(reduced[2])
    copy.__cause__, copy.__context__ = error.__cause__, error.__context__
    copy.__suppress_context__ = error.__suppress_context__
    return copy


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
    }
    if not hasattr(cls, "exception"):
        body["exception"] = property(lambda self: self)  # Monarch's attribute for the original exception
    both = type(cls.__name__, (cls, ActorError), body)
    return both
