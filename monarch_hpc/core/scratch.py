"""Folders that last as long as a process that holds them: what killed processes left goes when the next folder is made.

Whoever makes a folder locks a file in it, and hands the descriptor to processes that need the folder, too. The kernel
ends the lock with the last of them, however they end; nobody has to compare process ids, which are used again and mean
something else in another container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.ownership import unsafe_folder

__all__ = ["PREFIX", "hold_scratch", "make_scratch", "remove_unheld", "sweep_scratch"]

PREFIX = "monarch-hpc-"
"""Begins the names of all of them."""

_ADVICE = (
    "let TMPDIR, and XDG_RUNTIME_DIR where it is set, name one that only you can write, such as ~/tmp after "
    "'mkdir -m 700 ~/tmp'"
)
_LOCK = "held"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def make_scratch(place: Path, kind: str = "") -> tuple[Path, int]:
    """Make a folder in *place* that only we can enter, once those that nobody holds are gone from there.

    Args:
        kind: what its name says after `PREFIX`, with a hyphen at the end.

    Returns:
        The folder, and the descriptor that holds it, see `hold_scratch`.

    Raises:
        ConfigError: other users could put a folder of theirs in its place, there or further up.
        OSError: it cannot be made.
    """
    place = _settle(place)
    sweep_scratch(place)
    while True:
        folder = place / f"{PREFIX}{kind}{os.urandom(4).hex()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
            return folder, hold_scratch(folder)


def _settle(place: Path) -> Path:
    """Return *place* without links, once it is known that nobody else can change what this path leads to."""
    place = Path(os.path.realpath(place, strict=True))
    for folder in (place, *place.parents):
        if problem := unsafe_folder(os.lstat(folder)):
            what = "" if folder == place else f" is in {folder}, which"
            problem = f"is not safe for temporary files: it{what} {problem}"
            raise ConfigError("", "", str(place), f"{problem}; {_ADVICE}")
    return place


def hold_scratch(folder: Path) -> int:
    """Hold *folder* until the descriptor that is returned is closed, here and in all processes that inherited it."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    # Where there are no locks the file stays empty, and nobody touches the folder. Locked first, and then written:
    # between the two it is nobody's to remove.
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        os.pwrite(descriptor, _BOOT_ID.read_bytes(), 0)
    return descriptor


def sweep_scratch(place: Path) -> None:
    """Remove what our user's processes left in *place* when they were killed."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                remove_unheld(Path(entry.path))


def remove_unheld(folder: Path) -> None:
    """Remove *folder* if it was held on this machine, and is no more; else leave it alone."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            return
        # Writable: file systems of a network ask that of who wants it alone.
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Other machines may see the folder, but not every file system tells them of our locks.
            if os.pread(descriptor, 64, 0) == _BOOT_ID.read_bytes():
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
