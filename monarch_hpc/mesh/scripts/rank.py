"""The process that runs a script as one rank: a fresh interpreter, as under torchrun; see `mesh.scripts.script`.

    python -m monarch_hpc.mesh.scripts.rank ORDER_FD FAILED_FD SCRIPT ARGS...

The memory file ORDER_FD holds an `Order`. When the script fails, this process overwrites it with a `FailureReport` and
signals the eventfd FAILED_FD at once, because its exit may take long, and the failure may make other ranks fail first.
"""

from __future__ import annotations

import atexit
import builtins
import ctypes
import faulthandler
import linecache
import os
import pickle
import signal
import sys
from types import ModuleType

from monarch_hpc.actor.messages.sent_failures import pack_failure
from monarch_hpc.core.process.native_threads import wait_until_asleep
from monarch_hpc.core.text.description import text_of

__all__ = ["FailureReport", "Order", "main"]

_PR_SET_PDEATHSIG = 1

_REST_S = 2.0
"""Time for the threads of the script's libraries to finish what they do at its end: much more than one needs to get its
turn on a busy host. Threads that never rest, such as those that poll, cost it in full."""

Order = tuple[str, bytes, list[str], int]
"""The rank in words, the script's text, the import path, and the id of the parent process."""

FailureReport = tuple[int, str, bytes]
"""Failure of a script: exit status, message passed to `sys.exit`, and the exception as packed by `pack_failure`."""


def main(argv: list[str]) -> None:
    """Run a script as the main program of this process; returns only if the script succeeds."""
    order_fd, failed_fd = int(argv[0]), int(argv[1])
    script = argv[2]
    os.set_inheritable(order_fd, False)
    os.set_inheritable(failed_fd, False)
    where, text, path, parent = _read(order_fd)
    _die_with(parent)
    faulthandler.enable(all_threads=False)  # only the faulting thread: few lines of a dead proc are kept
    # Registered first, so called last. torch 2.13 keeps the threads of a gloo group that DistributedDataParallel has
    # used, also when it is destroyed. One that lets go of a tensor later ends this process: pytorch/pytorch#190489.
    atexit.register(wait_until_asleep, _REST_S)
    sys.argv = argv[2:]
    sys.path[:] = [os.path.dirname(script), *path]
    # This host may have no such file, or an older version: tracebacks must show the text that runs.
    source = text.decode("utf-8", "replace")
    linecache.cache[script] = len(source), None, source.splitlines(keepends=True), script
    module = ModuleType("__main__")
    module.__dict__.update(__file__=script, __builtins__=builtins)
    sys.modules["__main__"] = module
    failure: Exception | None = None
    try:
        exec(compile(text, script, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            status = leaving.code & 0xFF if isinstance(leaving.code, int) else 1
            message = "" if isinstance(leaving.code, int) else text_of(leaving.code)
            _report(order_fd, failed_fd, (status, message, b""))
        raise
    except Exception as error:  # noqa: BLE001 outermost frame of the script: reported below, then exits
        failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    if failure is not None:
        body, _ = pack_failure(where, failure)
        _report(order_fd, failed_fd, (1, "", bytes(body)))
        sys.excepthook(type(failure), failure, failure.__traceback__)
        sys.exit(1)


def _read(order_fd: int) -> Order:
    with open(order_fd, "rb", closefd=False) as file:
        file.seek(0)
        order: Order = pickle.load(file)
    return order


def _report(order_fd: int, failed_fd: int, report: FailureReport) -> None:
    with open(order_fd, "wb", closefd=False) as file:
        file.seek(0)
        file.truncate()
        pickle.dump(report, file)
    os.eventfd_write(failed_fd, 1)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # the parent died before the call above


if __name__ == "__main__":
    main(sys.argv[1:])
