"""The folder of a host in which UCX makes its shared memory: what a killed process leaves there goes with the agent.

UCX makes a file, and unlinks it a moment later: who is killed in between leaves it behind, in memory, for good.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from monarch_hpc.core.errors import ConfigError
from monarch_hpc.core.files import private_dir
from monarch_hpc.core.scratch import PREFIX, hold_scratch, sweep_scratch

__all__ = ["find_segments", "make_segments", "remove_segments"]

_ROOT = Path("/dev/shm")

_log = logging.getLogger(__name__)


def make_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> tuple[str, int]:
    """Make the folder of a host, once those of agents that were killed are gone.

    Returns:
        The folder, and the descriptor that holds it, see `scratch`; empty and -1 where there can be none: UCX then
        chooses a place.
    """
    if not root.is_dir():
        return "", -1
    sweep_scratch(root)
    try:
        folder = private_dir(_folder(allocation, host_rank, root))
        return str(folder), hold_scratch(folder)
    except (OSError, ConfigError) as error:
        _log.warning("no folder for shared memory: %s", error)
        return "", -1


def find_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> str:
    """The folder that the agent of a host has made; empty if there is none."""
    folder = _folder(allocation, host_rank, root)
    try:
        return str(private_dir(folder)) if folder.is_dir() else ""
    except (OSError, ConfigError):
        return ""


def remove_segments(allocation: str, host_rank: int, root: Path = _ROOT) -> None:
    """Remove the folder and what is in it. Memory that is in use stays, unlinked, until nobody uses it."""
    shutil.rmtree(_folder(allocation, host_rank, root), ignore_errors=True)


def _folder(allocation: str, host_rank: int, root: Path) -> Path:
    return root / f"{PREFIX}{allocation}-{host_rank}"
