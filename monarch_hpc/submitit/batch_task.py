"""Runs a function that `monarch_hpc.batch` has submitted; run as ``python -P -m`` by its batch script."""

from __future__ import annotations

import sys

from submitit.core.submission import process_job

from monarch_hpc.submitit.pickles import keep_pickles_private
from monarch_hpc.submitit.tasks.working_folder import admit_working_folder

__all__ = ["main"]


def main(folder: str) -> None:
    """Run the function whose pickle is in *folder*, and leave its result there."""
    if warning := admit_working_folder():
        print(warning, file=sys.stderr, flush=True)
    keep_pickles_private()
    process_job(folder)


if __name__ == "__main__":
    main(sys.argv[1])
