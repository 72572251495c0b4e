"""Attempts of an allocation's Slurm job: each start of its batch script has a folder of its own.

A requeued job runs the same script again, maybe while processes of the attempt before live on hosts that lost their
network. They go on to write into the folder of that attempt, and the newest one counts.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["ATTEMPTS", "attempt_folder", "attempt_identity", "newest_attempt"]

ATTEMPTS = "attempts"
"""The folder of their folders, which are named 1, 2, ... by the script that makes them."""


def attempt_folder(directory: Path, number: int) -> Path:
    """Return the folder of an attempt; number 0 is *directory* itself, of an allocation that is not a job."""
    return directory / ATTEMPTS / str(number) if number else directory


def attempt_identity(allocation: str, number: int) -> str:
    """Return the uuid of one attempt: agents and programs prove it to each other, and those of another are refused."""
    return f"{allocation[:24]}{number:08x}" if number else allocation


def newest_attempt(directory: Path) -> tuple[int, Path]:
    """Return number and folder of the newest attempt.

    Listed, not asked for by name: NFS remembers for up to a minute that a file was not there, but asks the server when
    a directory is opened.

    Returns:
        0 and *directory* itself before the first, and for an allocation that is not a job.
    """
    try:
        names = os.listdir(directory / ATTEMPTS)
    except FileNotFoundError:
        return 0, directory
    number = max((int(name) for name in names if name.isdecimal()), default=0)
    return number, attempt_folder(directory, number)
