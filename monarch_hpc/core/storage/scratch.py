"""Temporary folders held by processes; those left by killed processes are removed when the next folder is made.

The process that makes a folder locks a file in it and passes the descriptor to other processes that need the folder.
The kernel releases the lock with the last of them, however they end; process ids need not be compared, which are reused
and differ between containers.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.machine.procfs import read_boot_id
from monarch_hpc.core.storage.ownership import unsafe_folder
from monarch_hpc.core.storage.shortage import explained

__all__ = ["PREFIX", "hold_scratch", "make_scratch", "remove_unheld", "sweep_scratch", "temporary_folder"]

PREFIX = "monarch-hpc-"
"""Prefix of the folders' names."""

_ADVICE = (
    "let TMPDIR, and XDG_RUNTIME_DIR where it is set, name one that only you can write, such as ~/tmp after "
    "'mkdir -m 700 ~/tmp'"
)
_LOCK = "held"


def temporary_folder(environ: Mapping[str, str]) -> Path:
    """The folder that `tempfile.gettempdir` names, usually without loading `tempfile`, which delays the first agent.

    Args:
        environ: this process's environment.
    """
    named = next(filter(None, map(environ.get, ("TMPDIR", "TEMP", "TMP"))), "/tmp")
    usable = os.path.isabs(named) and os.path.isdir(named) and os.access(named, os.W_OK | os.X_OK)
    if usable and "tempfile" not in sys.modules:  # which the program may have told another one
        return Path(named)
    import tempfile

    return Path(tempfile.gettempdir())


def make_scratch(place: Path, kind: str = "") -> tuple[Path, int]:
    """Make a folder in *place* that only this user can enter; before that, remove the ones there that are not held.

    Args:
        kind: part of the name after `PREFIX`, with a hyphen at its end.

    Returns:
        The folder, and the descriptor that holds it, see `hold_scratch`.

    Raises:
        ConfigError: other users could exchange the folder, or one of its parents.
        OSError: the folder cannot be made.
    """
    with explained(place):
        place = _settle(place)
        sweep_scratch(place)
        while True:
            folder = place / f"{PREFIX}{kind}{os.urandom(4).hex()}"
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                return folder, hold_scratch(folder)


def _settle(place: Path) -> Path:
    """Return *place* without links, after checking that no other user can change where this path leads."""
    place = Path(os.path.realpath(place, strict=True))
    for folder in (place, *place.parents):
        if problem := unsafe_folder(os.lstat(folder)):
            what = "" if folder == place else f" is in {folder}, which"
            problem = f"is not safe for temporary files: it{what} {problem}"
            raise ConfigError("", "", str(place), f"{problem}; {_ADVICE}")
    return place


def hold_scratch(folder: Path) -> int:
    """Hold *folder* until the returned descriptor is closed, here and in all processes that inherited it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    # Locked first, then written: a folder whose file is empty is never removed. Where the file system has no locks
    # the file stays empty.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.pwrite(descriptor, _boot_id(), 0)
    return descriptor


def sweep_scratch(place: Path) -> None:
    """Remove the folders that this user's killed processes left in *place*."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                remove_unheld(Path(entry.path))


def remove_unheld(folder: Path) -> None:
    """Remove *folder* if it was held on this machine and is not held any more; otherwise leave it alone."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        # Writable: network file systems demand that for an exclusive lock.
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Other machines may see the folder, but not all file systems share locks between machines.
            if os.pread(descriptor, 64, 0) == _boot_id():
                import shutil  # seldom needed, and with all its formats of archives as large as the rest

                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _boot_id() -> bytes:
    return f"{read_boot_id()}\n".encode()
