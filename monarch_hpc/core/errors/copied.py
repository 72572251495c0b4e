"""Copies exceptions into classes derived from theirs, without running a constructor of a user's class.

Such a constructor takes other arguments than any code here could know, and may do anything.
"""

from __future__ import annotations

import contextlib
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

__all__ = ["copy_as"]


def copy_as(cls: type, error: BaseException) -> Any:
    """Return an instance of *cls* with the arguments and attributes of *error*, of which *cls* is a kind.

    Raises:
        Exception: it cannot be made.
    """
    ancestors: tuple[type, ...] = cls.__mro__
    new = next(made for each in ancestors if (made := vars(each).get("__new__")) and not isinstance(made, staticmethod))
    copy: Any = new(cls, *error.args[:2]) if issubclass(cls, BaseExceptionGroup) else new(cls)
    for each in ancestors[: ancestors.index(BaseException)]:
        for name, attribute in vars(each).items():
            if isinstance(attribute, (MemberDescriptorType, GetSetDescriptorType)) and not name.startswith("__"):
                with contextlib.suppress(AttributeError, TypeError):  # not set there, or read-only
                    # None may stand for "never set", and then changes the message of an OSError.
                    if (value := attribute.__get__(error)) is not None:
                        attribute.__set__(copy, value)
    vars(copy).update(vars(error))
    for name in ("args", "__cause__", "__context__", "__suppress_context__", "__traceback__"):
        attribute = vars(BaseException)[name]
        attribute.__set__(copy, attribute.__get__(error))
    return copy
