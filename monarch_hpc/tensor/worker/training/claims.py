"""A folder that a save writes its checkpoint into, where another save may still be at work.

The ranks of a program that was killed write on until their agent has ended them, which takes longer on another host or
a slow file system, and the next program may save into the same folder by then. So files have a save's own name, and
only the last one to claim the folder completes its checkpoint.

The folder may be a group's. Then others see the names of a save, and may put links in their places.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from torch.distributed.checkpoint.filesystem import FileSystem

from monarch_hpc.core.storage.files import NEW_FILE

__all__ = ["Claim", "NewFiles", "write_part"]

_PARTS = ".writ", ".metadata", "__"
"""Begin the names of all files that a save writes."""

_LEFT = re.compile(r"\.writ|__\d+_([0-9a-f]{16}_)?\d+\.distcp$")
"""Files of a save that was killed, perhaps of more ranks than the next one has; but not its claim."""

_WRITING: set[Path] = set()
"""Folders that this process, as the first rank, is writing."""


def _open_new(path: str, _flags: int) -> int:
    return os.open(path, os.O_WRONLY | NEW_FILE, 0o666)  # whom a checkpoint is for is up to the umask


def _open_private(path: str, _flags: int) -> int:
    return os.open(path, os.O_WRONLY | NEW_FILE, 0o600)


def _open_own(path: str, _flags: int) -> int:
    """Open a file of this user with one name, to write it."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise FileExistsError(f"{path} has been exchanged by user id {found.st_uid}: choose a folder that is yours")
    return descriptor


def write_part(path: Path, data: bytes) -> None:
    """Write a file that only this user may read or write, whatever the umask; empty if there is no room.

    Raises:
        OSError: there is no room; or something has that name, perhaps another user's link.
    """
    try:
        with open(path, "wb", opener=_open_private) as file:
            file.write(data)
    except FileExistsError:
        raise
    except OSError:
        path.unlink(missing_ok=True)
        open(path, "wb", opener=_open_private).close()  # a full disk often has room for this
        raise


class NewFiles(FileSystem):
    """Writes files that were not there, and follows no link."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        with open(path, mode, opener=_open_new if mode == "wb" else None) as stream:
            yield cast("io.IOBase", stream)


class Claim(NewFiles):
    """The first rank's right to complete a checkpoint: a file that becomes ``.metadata``.

    A later save in the same folder removes it.

    Attributes:
        name: of this save among those that were made in the folder.

    Raises:
        FileExistsError: the folder has a checkpoint already, or gets one.
    """

    def __init__(self, folder: Path) -> None:
        self.name = os.urandom(8).hex()
        self._folder = folder
        self._file = folder / f".metadata-{self.name}.tmp"
        self._refuse_complete()
        if folder in _WRITING:
            raise FileExistsError(
                f"{folder} is being written by a save that is not done: wait for it, or choose another"
            )
        folder.mkdir(parents=True, exist_ok=True)
        found = [entry for entry in folder.iterdir() if entry.name.startswith(_PARTS)]
        for entry in found:
            # A pipe would be waited for, and a link followed. What others remove now is theirs.
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISREG(entry.lstat().st_mode):
                    raise FileExistsError(f"{entry} is not a regular file: remove it, or choose another folder")
        # Claims first: whoever had one has either completed its checkpoint before, or never will.
        for entry in found:
            if entry.name.startswith(".metadata") and entry.name.endswith(".tmp"):
                entry.unlink(missing_ok=True)
        self._refuse_complete()
        for entry in found:
            if _LEFT.match(entry.name):
                entry.unlink(missing_ok=True)
        self._file.touch(exist_ok=False)
        _WRITING.add(folder)

    def _refuse_complete(self) -> None:
        if (self._folder / ".metadata").exists():
            raise FileExistsError(f"{self._folder} has a checkpoint already: choose another folder, such as step-100")

    def end(self) -> None:
        """Let go of the folder."""
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        _WRITING.discard(self._folder)

    # ---- what FileSystemWriter completes a checkpoint by ----

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a file; for ``.metadata`` the claim, which must still be there."""
        if not Path(path).name.startswith(".metadata"):
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        try:
            file = open(self._file, "r+b", opener=_open_own)
        except FileNotFoundError as error:
            raise self._lost(error) from error
        with file:
            yield cast("io.IOBase", file)

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Nothing is removed before it is replaced."""
        return False

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Complete the checkpoint."""
        try:
            self._file.rename(new_path)
        except FileNotFoundError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> OSError:
        if error.filename != str(self._file):
            return error
        return FileExistsError(f"{self._folder} is being written by another save, which began later: choose another")
