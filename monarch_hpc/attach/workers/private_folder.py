"""A private folder for secrets that is removed when this process ends, however it ends, by a small child process."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.core.process.spawn import launch
from monarch_hpc.core.storage.scratch import make_scratch

__all__ = ["open_private_folder"]

_SCRIPT = 'read -r _; rm -rf -- "$1"'
"""Standard input ends with this process and all its forked children."""

_END_S = 5.0
"""Time that the child may take to notice that; by then nothing is left to remove."""


@contextlib.contextmanager
def open_private_folder() -> Iterator[Path]:
    """Make a folder in the temporary directory that only this user can enter; it is removed with the context.

    Raises:
        OSError: the folder or the child process cannot be created.
    """
    own = os.getpid()
    folder, held = make_scratch(Path(tempfile.gettempdir()))
    try:
        cleaner = launch(
            ["/bin/sh", "-c", _SCRIPT, "monarch-hpc-attendant", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            new_session=True,
        )
        try:
            yield folder
        finally:
            if os.getpid() == own:  # a forked child may leave the context, too
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                    # A line, too: a forked child may hold the other end of the pipe open.
                    cleaner.communicate(b"\n", _END_S)
                cleaner.kill()
                cleaner.wait()
    finally:
        if os.getpid() == own:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
