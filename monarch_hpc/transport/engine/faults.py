"""Errors of an engine that no caller of it gets: those of its callbacks, and those that end it."""

from __future__ import annotations

import errno
from collections.abc import Callable

from monarch_hpc.core.logger import Logger
from monarch_hpc.core.text.description import trace_of

__all__ = ["OnFault", "is_fatal", "log_fault"]

_log = Logger(__name__)

OnFault = Callable[[str, BaseException], None]
"""Called with what has failed, in words, and the error, on any thread; a message may be lost, and its sender wait."""


def log_fault(what: str, error: BaseException) -> None:
    """Go on."""
    _log.error("%s:\n%s", what, trace_of(error))


def is_fatal(error: OSError) -> bool:
    """Whether *error* means that a descriptor of the engine was closed, or reused for another file."""
    return error.errno in (errno.EBADF, errno.EINVAL)
