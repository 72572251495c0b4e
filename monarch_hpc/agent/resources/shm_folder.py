"""The folder of a host for UCX's shared memory and the sockets of MPI meshes: what is left in it goes with the agent.

UCX makes a file, and unlinks it a moment later: a process that is killed in between leaves it behind, in memory, for
good.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import private_dir
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.scratch import PREFIX, hold_scratch, sweep_scratch

__all__ = ["find_segments", "make_segments", "remove_segments"]

_ROOT = Path("/dev/shm")

_log = Logger(__name__)


def make_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> tuple[str, int]:
    """Make the folder of a host, once those of agents that were killed are gone.

    Returns:
        The folder, and the descriptor that holds it, see `scratch`; empty and -1 where there can be none: UCX then
        chooses a place.
    """
    if not root.is_dir():
        return "", -1
    sweep_scratch(root)
    name = _name(allocation, host_rank)
    # Other users see the names of allocations in the list of processes, and may have made the folder first.
    for folder in (root / name, root / f"{name}.{os.urandom(4).hex()}"):
        try:
            return str(private_dir(folder)), hold_scratch(folder)
        except (OSError, ConfigError) as error:
            _log.warning("a folder for shared memory and sockets cannot be used: %s", error)
    return "", -1


def find_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> str:
    """The folder that the agent of a host has made; empty if there is none."""
    found = _own(allocation, host_rank, root)
    return next((entry.path for entry, mode in found if stat.S_ISDIR(mode) and not mode & 0o077), "")


def remove_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> None:
    """Remove the folder and what is in it. Memory that is in use stays, unlinked, until nobody uses it."""
    for entry, _ in _own(allocation, host_rank, root):
        shutil.rmtree(entry.path, ignore_errors=True)


def _own(allocation: str, host_rank: int, root: Path) -> list[tuple[os.DirEntry[str], int]]:
    """What has such a name and belongs to this user, with its mode."""
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
