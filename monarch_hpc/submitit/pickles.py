"""The pickles of jobs: 0600 whatever the umask, because write access to one means running code as its reader."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from submitit.core import utils

__all__ = ["keep_pickles_private", "open_private", "write_pickle"]

_dump = utils.cloudpickle_dump


def open_private(path: str, flags: int) -> int:
    """The opener, see `open`, of a file that only its owner can read and write."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    os.fchmod(descriptor, 0o600)
    return descriptor


def write_pickle(obj: Any, filename: str | Path) -> None:
    """Write a function with its arguments, a checkpoint or a result, as submitit does."""
    os.close(open_private(str(filename), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
    _dump(obj, filename)  # keeps the mode of a file that exists


def keep_pickles_private() -> None:
    """Let submitit write the results and checkpoints of this process likewise.

    Its own function would leave the mode to the umask, which must stay as it is: the files of users depend on it.
    """
    utils.cloudpickle_dump = write_pickle
