"""Runs programs one after the other in one process, so that they share one allocation; run as a program.

Each is run as `__main__` with what it prints between two marks. One that takes too long is interrupted, and one that
raises prints its traceback: its test fails, and the next one runs.
"""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from types import FrameType

import monarch_hpc.actor
from monarch_hpc import MeshFailure

LIMIT_S = 120


def _pass_over(_failure: MeshFailure) -> None:
    """Handle a failure that may come late, from an earlier program; the usual hook would end this process."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError(f"it was still running after {LIMIT_S} s")


def main() -> None:
    """Run the files that the command line names."""
    signal.signal(signal.SIGALRM, _interrupt)
    monarch_hpc.actor.unhandled_fault_hook = _pass_over
    for path in map(Path, sys.argv[1:]):
        print(f"=== {path.stem}", flush=True)
        signal.alarm(LIMIT_S)
        try:
            exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
        except BaseException:  # noqa: BLE001 the test of this program fails by its output
            traceback.print_exc(file=sys.stdout)
        finally:
            signal.alarm(0)
            monarch_hpc.actor.unhandled_fault_hook = _pass_over
            sys.stdout.flush()


if __name__ == "__main__":
    main()
