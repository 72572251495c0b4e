"""Modules of the working folder, for the functions of jobs: only from a folder into which no other user can put files.

Processes of jobs are started with ``-P``. Otherwise, Python would take even its own modules from that folder first.
"""

from __future__ import annotations

import os
import sys

from monarch_hpc.core.storage.ownership import shared_folder

__all__ = ["admit_working_folder"]


def admit_working_folder() -> str:
    """Let modules of the working folder be imported, as in submitit's own jobs, unless others may have put them there.

    Returns:
        A warning, with the next step, if they are not; otherwise empty.
    """
    folder = os.getcwd()
    problem = shared_folder(os.stat(folder))
    if not problem:
        sys.path.insert(0, folder)
        return ""
    return (
        f"monarch-hpc: modules of the working folder {folder} are not imported: it {problem}, and code of theirs would "
        f"run as you. Look at what is in it, then run 'chmod go-w {folder}'; or submit from a folder of your own"
    )
