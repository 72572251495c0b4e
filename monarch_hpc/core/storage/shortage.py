"""Explains each `OSError` of what has run out, such as room on a disk, a quota or descriptors, or is read-only."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

__all__ = ["explained", "full_note", "shortage_note"]

_OTHER_PLACE = "use another place ($TMPDIR; config keys 'paths.state', 'paths.shared')"
_ELSEWHERE = f"make room there, or {_OTHER_PLACE}"


@contextlib.contextmanager
def explained(path: Path | None = None) -> Iterator[None]:
    """Give each `OSError` that leaves the context a file, *path* if it names none, and a note with the next step.

    Of a file in a folder that was opened before, an error has the bare name; it gets *path*, too.
    """
    try:
        yield
    except OSError as error:
        named = error.filename if isinstance(error.filename, str) else ""
        if os.sep not in named and error.errno is not None and path is not None:
            error.filename = str(path)
        note = shortage_note(error)
        if note and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        raise


def shortage_note(error: BaseException) -> str:
    """The next step after an error that says that something has run out or is read-only; empty for any other error."""
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EMFILE:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = f", the hard limit is {hard}" if soft == hard else ""
        raises = "raise the limit by 'ulimit -n' where the process is started"
        return f"all {soft} descriptors that the process may have are in use{most}: close some, or {raises}"
    if number == errno.ENFILE:
        return "this machine has no descriptors left, of all users together: end some programs, or use another machine"
    if number not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return ""
    assert isinstance(error, OSError)
    where = "that was written to, perhaps standard output's," if error.filename is None else f"of {error.filename}"
    if number == errno.EDQUOT:
        return f"your quota on the file system {where} is used up: {_ELSEWHERE}"
    if number == errno.EROFS:
        return f"the file system {where} is read-only here: {_OTHER_PLACE}"
    return f"the file system {where} is full: {_ELSEWHERE}"


def full_note(path: Path) -> str:
    """The next step if the file system of *path* has no room for a user's files; empty if it has, or nobody knows."""
    try:
        found = os.statvfs(path)
    except OSError:
        return ""
    if found.f_blocks and not found.f_bavail:
        return shortage_note(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)))
    return ""
