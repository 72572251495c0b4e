"""Attempts of an allocation's Slurm job: each start of the batch script gets its own folder.

A requeued job runs the same script again, possibly while processes of the previous attempt still run on hosts that lost
their network. Those keep writing to the folder of their attempt; readers use the newest.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ATTEMPTS", "attempt_folder", "attempt_identity", "newest_attempt"]

ATTEMPTS = "attempts"
"""Name of the folder that holds the attempts' folders; the batch script names those 1, 2, ..."""


def attempt_folder(directory: Path, number: int) -> Path:
    """Return the folder of an attempt; number 0 is *directory* itself, for an allocation that is not a Slurm job."""
    return directory / ATTEMPTS / str(number) if number else directory


def attempt_identity(allocation: str, number: int) -> str:
    """Return the uuid of one attempt, which agents and programs prove to each other; other attempts are refused."""
    return f"{allocation[:24]}{number:08x}" if number else allocation


def newest_attempt(directory: Path) -> tuple[int, Path]:
    """Return number and folder of the newest attempt.

    The directory is listed rather than probed by name: NFS caches for up to a minute that a file does not exist, but
    asks the server when a directory is opened.

    Returns:
        0 and *directory* itself before the first attempt, and for an allocation that is not a Slurm job.
    """
    try:
        names = os.listdir(directory / ATTEMPTS)
    except FileNotFoundError:
        return 0, directory
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    return number, attempt_folder(directory, number)
