"""The process that runs a script as one rank: a fresh interpreter, as torchrun gives it; see `mesh.scripts.script`.

    python -m monarch_hpc.mesh.scripts.rank ORDER_FD TOLD_FD SCRIPT ARGS...

Its first words are in the memory file ORDER_FD. When the script fails, it writes how over them and pokes TOLD_FD:
its end may be long in coming, and other ranks fail of its failure before that.
"""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import linecache
import os
import pickle
import signal
import sys
from types import ModuleType

from monarch_hpc.actor.messages.payload import pack_failure
from monarch_hpc.core.description import text_of

__all__ = ["Order", "Word", "main"]

_PR_SET_PDEATHSIG = 1

Order = tuple[str, bytes, list[str], int]
"""The rank in words, the script's text, the import path, and the process that started this one."""

Word = tuple[int, str, bytes]
"""How a script failed: exit status, what `sys.exit` was given to say, and the exception as `pack_failure` gives it."""


def main(argv: list[str]) -> None:
    """Run a script as the main program of this process; returns only if it ends well."""
    order_fd, told_fd = int(argv[0]), int(argv[1])
    script = argv[2]
    os.set_inheritable(order_fd, False)
    os.set_inheritable(told_fd, False)
    where, text, path, parent = _read(order_fd)
    _end_with(parent)
    faulthandler.enable(all_threads=False)  # the thread that did it: few lines are kept of the dead
    sys.argv = argv[2:]
    sys.path[:] = [os.path.dirname(script), *path]
    # This host may not have the file, or an older one: tracebacks are to show what runs.
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
            said = "" if isinstance(leaving.code, int) else text_of(leaving.code)
            _tell(order_fd, told_fd, (status, said, b""))
        raise
    except Exception as error:  # noqa: BLE001 below the last frame of the script: it tells what happened and exits
        failure = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
    if failure is not None:
        body, _ = pack_failure(where, failure)
        _tell(order_fd, told_fd, (1, "", bytes(body)))
        sys.excepthook(type(failure), failure, failure.__traceback__)
        sys.exit(1)


def _read(order_fd: int) -> Order:
    with open(order_fd, "rb", closefd=False) as file:
        file.seek(0)
        order: Order = pickle.load(file)
    return order


def _tell(order_fd: int, told_fd: int, word: Word) -> None:
    with open(order_fd, "wb", closefd=False) as file:
        file.seek(0)
        file.truncate()
        pickle.dump(word, file)
    os.eventfd_write(told_fd, 1)


def _end_with(parent: int) -> None:
    """Let the kernel end this process with the one that started it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before the kernel knew of our wish


if __name__ == "__main__":
    main(sys.argv[1:])
