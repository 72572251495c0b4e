"""Reports of failed operations, as plain values."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path
from typing import Any

from monarch_hpc.core.text.description import class_name, text_of
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["LoanFailed", "OpFailure", "pack_failure", "unpack_exception"]

OpFailure = tuple[int, str, str, str, str, bytes]
"""Sequence number, operation, class, text, traceback, the pickled class and exception, or nothing."""


class LoanFailed(Exception):
    """What another stream of this rank hands over is no value, because an operation there failed.

    Args:
        key: identifies the engine of that stream.
        root: sequence number of the operation.
    """

    def __init__(self, key: int, root: int) -> None:
        super().__init__(key, root)
        self.key = key
        self.root = root


_OWN = str(Path(__file__).parents[1])


def pack_failure(seq: int, name: str, error: BaseException) -> OpFailure:
    """Describe a failed operation; user code may be all that there is in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OWN)]
    trace = "".join(traceback.format_list(frames))
    packed = b""
    if isinstance(error, Exception):
        with contextlib.suppress(BaseException):  # pickling runs user code
            packed = dumps((type(error), b""))[0]
            body, buffers = dumps(error.with_traceback(None))
            packed = packed if buffers else dumps((type(error), body))[0]
    return seq, name.replace(":", ".").removesuffix(".__get__"), class_name(error), text_of(error), trace, packed


def unpack_exception(packed: bytes) -> tuple[type[Exception] | None, Exception | None]:
    """The class of the exception, and the exception itself; None for what cannot be rebuilt here."""
    cls: Any = None
    error: Any = None
    with contextlib.suppress(Exception):  # unpickling runs user code
        unpacked: Any = loads(packed)
        cls, body = unpacked
        error = loads(body) if body else None
    kept = error if isinstance(error, Exception) else None
    return (cls if isinstance(cls, type) and issubclass(cls, Exception) else None), kept
