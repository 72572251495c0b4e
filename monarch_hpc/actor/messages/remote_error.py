"""What a remote actor raised, caught by its own class and by `ActorError`.

Whoever knows what an endpoint raises writes ``except ValueError``; programs written for Monarch write ``except
ActorError``. So an exception that comes from another actor is of a class that is both, and otherwise like its own: same
name, same attributes, pickled as its own class. ``type(error) is ValueError`` alone tells them apart.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, cast

from monarch_hpc.core.errors import ActorError

__all__ = ["as_actor_error"]

_NUM_CLASSES = 1024
"""How many classes are remembered; a program that makes more at run time makes some of these again."""

_CLASS: Any = vars(object)["__class__"]
"""An exception may have an attribute of that name that does anything."""


def as_actor_error(error: BaseException) -> BaseException:
    """*error*, or its like, of a class that is also an `ActorError`; itself where its class allows no such thing."""
    cls: Any = type(error)  # `isinstance` would ask the exception itself
    if not issubclass(cls, Exception) or issubclass(cls, (ActorError, BaseExceptionGroup)):
        return error
    try:
        # A metaclass may say of any two classes that they are equal.
        both = _both(cls) if type(cls) is type else _both.__wrapped__(cls)
        with contextlib.suppress(TypeError):  # of classes written in C the class cannot be changed
            _CLASS.__set__(error, both)
            return error
        again = _again(cast(Exception, error), both)
    except BaseException:  # noqa: BLE001 constructors and metaclasses of users; what they raised is what counts
        return error
    return again if type.__subclasscheck__(cls, type(again)) else error


def _again(error: Exception, both: type[Exception]) -> Exception:
    """The same exception once more, of another class."""
    reduced: Any = error.__reduce__()  # of exceptions it is a tuple: class, arguments, and perhaps attributes
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
        body["exception"] = property(lambda self: self)  # where Monarch keeps what was raised
    both = type(cls.__name__, (cls, ActorError), body)
    return both
