"""A folder with secrets that goes with this process, however it ends: a small process waits for that end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from monarch_hpc.core.scratch import make_scratch
from monarch_hpc.core.spawn import launch

__all__ = ["open_private_folder"]

_SCRIPT = 'read -r _; rm -rf -- "$1"'
"""Its standard input ends with this process, and with those that this process forked."""

_END_S = 5.0
"""How long it may take to see that; what is left to remove is nothing by then."""


@contextlib.contextmanager
def open_private_folder() -> Iterator[Path]:
    """Make a folder that only we can enter, in the temporary directory; it ends with the context.

    Raises:
        OSError: there is no room for it, or no process can be started.
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
            if os.getpid() == own:  # what was forked meanwhile may leave the context, too
                shutil.rmtree(folder, ignore_errors=True)
                with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                    # A line, too: somebody who was forked may hold the other end open.
                    cleaner.communicate(b"\n", _END_S)
                cleaner.kill()
                cleaner.wait()
    finally:
        if os.getpid() == own:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(held)
