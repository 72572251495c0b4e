"""Operations that failed, with the lines that issued them, until one of their results is read."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from threading import Lock
from typing import Any

from monarch_hpc.core.errors import MonarchError, RemoteOpError
from monarch_hpc.tensor.stream.capture_notes import ENGINES
from monarch_hpc.tensor.stream.sites import Site, line_of
from monarch_hpc.tensor.worker.report import LoanFailed, OpFailure, unpack_exception

__all__ = ["FailedOp", "Failures"]


class FailedOp:
    """A failed operation.

    Args:
        rank: the rank that reported it first.
        site: the line that issued it.
        failure: the report.

    Attributes:
        is_read: whether its error was raised.
    """

    __slots__ = ("failure", "is_read", "rank", "site")

    def __init__(self, rank: int, site: Site, failure: OpFailure) -> None:
        self.rank = rank
        self.site = site
        self.failure = failure
        self.is_read = failure[2] == LoanFailed.__name__  # it is that of another operation, which is reported too

    def error(self) -> Exception:
        """The exception, of the class that the operation raised and a `RemoteOpError`."""
        self.is_read = True
        _, name, type_name, message, trace, packed = self.failure
        fields = name, self.rank, line_of(self.site), type_name, message, trace
        cls, cause = unpack_exception(packed)
        if isinstance(cause, LoanFailed):
            owner = next((one for one in ENGINES if one.key == cause.key), None)
            if owner is not None:
                return owner.error_of(cause.root)  # type: ignore[no-any-return]
        error = RemoteOpError(*fields)
        if cls is not None and not issubclass(cls, MonarchError):
            with contextlib.suppress(Exception):  # a class of the user may refuse to be a base
                error = _joint(cls)(*fields)
        error.__cause__ = cause
        return error


def _fill(self: RemoteOpError, *fields: Any) -> None:
    """Take the place of the constructor, which would call that of the other class."""
    BaseException.__init__(self, *fields)
    self.op, self.rank, self.line, self.type_name, self.message, self.remote_traceback = fields


def _joint(cls: type[Exception]) -> type[RemoteOpError]:
    body: dict[str, Any] = {
        "__init__": _fill,
        "__str__": RemoteOpError.__str__,
        "__module__": cls.__module__,
        "__reduce__": lambda self: (RemoteOpError, RemoteOpError(*self.args).args),
    }
    return type(cls.__name__, (RemoteOpError, cls), body)


class Failures:
    """Failed operations by sequence number; for any thread.

    Args:
        keep: number of operations that are kept: the latest ones.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._ops: OrderedDict[int, FailedOp] = OrderedDict()
        self._lock = Lock()

    def add(self, op: FailedOp) -> None:
        """Note a report of a rank; the first one about an operation counts."""
        with self._lock:
            self._ops.setdefault(op.failure[0], op)
            while len(self._ops) > self._keep:
                self._ops.popitem(last=False)

    def take(self, seq: int) -> Exception:
        """The exception of a failed operation."""
        with self._lock:
            op = self._ops.get(seq)
        if op is None:
            return RemoteOpError("an operation", -1, "a line that is not kept", "RuntimeError", f"number {seq}", "")
        return op.error()

    def is_unread(self, seq: int) -> bool:
        """Whether the error of an operation was not raised yet."""
        with self._lock:
            op = self._ops.get(seq)
        return op is not None and not op.is_read

    def forgive(self) -> None:
        """Mark all as read: what they spoilt is dropped."""
        with self._lock:
            for op in self._ops.values():
                op.is_read = True

    def take_unread(self) -> Exception | None:
        """The first unread exception; marks all as read, and notes the number of others."""
        with self._lock:
            unread = [op for op in self._ops.values() if not op.is_read]
        if not unread:
            return None
        error = unread[0].error()
        for op in unread[1:]:
            op.is_read = True
        if len(unread) > 1:
            error.add_note(f"and {len(unread) - 1} more operations failed, whose results nobody has read")
        return error
