"""Runs a function that `monarch_hpc.batch` has submitted; run as ``python -P -m`` by its batch script."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from submitit.core.submission import process_job
from submitit.slurm.slurm import SlurmJobEnvironment

from monarch_hpc.submitit.pickles import keep_pickles_private
from monarch_hpc.submitit.tasks.working_folder import admit_working_folder

__all__ = ["main", "shield_requeue"]


def main(folder: str) -> None:
    """Run the function whose pickle is in *folder*, and leave its result there."""
    if warning := admit_working_folder():
        print(warning, file=sys.stderr, flush=True)
    keep_pickles_private()
    shield_requeue()
    process_job(folder)


def shield_requeue() -> None:
    """Let ``scontrol requeue``, which submitit starts, outlive the SIGTERM by which Slurm ends all of the job.

    Killed by it after it has sent its request, it counts as failed, and the function's checkpoint as an error.
    """
    requeue = SlurmJobEnvironment._requeue

    @wraps(requeue)
    def shielded(self: Any, countdown: int) -> None:
        with _without_sigterm():
            requeue(self, countdown)

    SlurmJobEnvironment._requeue = shielded  # type: ignore[method-assign]  # submitit has no hook for it


@contextmanager
def _without_sigterm() -> Iterator[None]:
    """Ignore SIGTERM, and have commands that start meanwhile ignore it, too."""
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    main(sys.argv[1])
