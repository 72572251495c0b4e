"""A host's folder in /dev/shm for UCX's shared memory and the sockets of MPI meshes; the agent removes it at its end.
Programs, which may use several allocations, have one each.

UCX creates a file and unlinks it a moment later: a process killed in between would leak it, in memory, until reboot.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.storage.files import private_dir
from monarch_hpc.core.storage.scratch import PREFIX, hold_scratch, make_scratch, sweep_scratch

__all__ = ["find_segments", "make_own_segments", "make_segments", "remove_own_segments", "remove_segments"]

_ROOT = Path("/dev/shm")

_log = Logger(__name__)


def make_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> tuple[str, int]:
    """Make the folder of a host; first remove the folders of killed agents.

    Returns:
        The folder, and the descriptor that holds it (see `core.storage.scratch`); empty and -1 if it cannot be made:
        UCX then chooses a folder.
    """
    if not root.is_dir():
        return "", -1
    sweep_scratch(root)
    name = _name(allocation, host_rank)
    # Other users can see allocation names in the process list, and may have created the folder first.
    for folder in (root / name, root / f"{name}.{os.urandom(4).hex()}"):
        try:
            return str(private_dir(folder)), hold_scratch(folder)
        except (OSError, ConfigError) as error:
            _log.warning("a folder for shared memory and sockets cannot be used: %s", error)
    return "", -1


def make_own_segments(root: Path = _ROOT) -> tuple[str, int]:
    """Make a folder for a process that belongs to no host, a program; otherwise as `make_segments`."""
    if not root.is_dir():
        return "", -1
    try:
        folder, held = make_scratch(root, "program-")
    except (OSError, ConfigError) as error:
        _log.warning("a folder for shared memory cannot be used: %s", error)
        return "", -1
    return str(folder), held


def remove_own_segments(folder: str, held: int) -> None:
    """Remove what `make_own_segments` has made."""
    if folder:
        _remove(folder)
        os.close(held)


def find_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> str:
    """The folder that the agent of a host has made; empty if there is none."""
    found = _own(allocation, host_rank, root)
    return next((entry.path for entry, mode in found if stat.S_ISDIR(mode) and not mode & 0o077), "")


def remove_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> None:
    """Remove the folder with its contents. Memory in use stays, unlinked, until its last user closes it."""
    for entry, _ in _own(allocation, host_rank, root):
        _remove(entry.path)


def _own(allocation: str, host_rank: int, root: Path) -> list[tuple[os.DirEntry[str], int]]:
    """Entries with the folder's name that belong to this user, with their modes."""
    name = _name(allocation, host_rank)
    found = []
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        for entry in entries:
            if entry.name == name or entry.name.startswith(f"{name}."):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.geteuid():
                        found.append((entry, status.st_mode))
    return found


def _name(allocation: str, host_rank: int) -> str:
    return f"{PREFIX}{allocation}-{host_rank}"


def _remove(folder: str | Path) -> None:
    import shutil  # with all its formats of archives it is as large as all that procs need of this package's agent

    shutil.rmtree(folder, ignore_errors=True)
