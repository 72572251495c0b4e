"""`python -m monarch_hpc.job.worker`: a worker process of a `ProcessJob`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.storage.scratch import remove_unheld
from monarch_hpc.job.process import STAY
from monarch_hpc.mesh.workers import run_worker_loop_forever

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run a worker until SIGTERM, and remove the job's folder if it is the last worker.

    Args:
        arguments: the address, the job's folder, and the descriptor that holds the folder, see `core.storage.scratch`.
    """
    address, folder, held = arguments
    signal.signal(signal.SIGTERM, _leave)
    Thread(_watch_program)
    code = 0
    try:
        run_worker_loop_forever(address=address, private_key=Path(folder) / "key")
    except SystemExit as end:
        code = int(end.code or 0)
    # Not after other exceptions: their traceback is in the folder.
    os.close(int(held))
    remove_unheld(Path(folder))
    return code


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _watch_program() -> None:
    # Not through `sys.stdin`: a thread that blocks in it prevents the interpreter from exiting.
    if os.read(0, len(STAY)) != STAY:
        os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
