"""Turns itself into a user's program; run by path, as ``launcher.py PARENT FOLDER UMASK WORD...``, in its own session.

The agent has threads, so that nothing may run between its fork and its exec. This interpreter, which loads nothing of
ours, does it instead: the terminal, the signals that the agent blocks, and death with the agent. A program's first
line waits for it, so that it loads as little as it can: `signal` makes enumerations, which takes as long as all else.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # a module of CPython that its stubs leave out
import ctypes
import os
import sys

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_EXIT_NO_FOLDER = 66
_EXIT_NOT_EXECUTABLE, _EXIT_NOT_FOUND = 126, 127


def main(parent: str, folder: str, umask: str, argv: list[str]) -> int:
    """Become the program *argv*; return an exit code, as a shell's, if that is not possible."""
    if os.isatty(0):
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # the agent has died meanwhile
        return 128 + int(_signal.SIGKILL)
    os.umask(int(umask))
    # Python ignores SIGPIPE, and a program would inherit that.
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    place = f"on {os.uname().nodename}"
    try:
        os.chdir(folder)
    except OSError as error:
        return _fail(f"the working folder {folder} cannot be used {place}: {error.strerror}", _EXIT_NO_FOLDER)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return _fail(f"command '{argv[0]}' is not found {place}", _EXIT_NOT_FOUND)
        return _fail(f"'{argv[0]}' cannot be run {place}: {error.strerror}", _EXIT_NOT_EXECUTABLE)


def _fail(problem: str, code: int) -> int:
    os.write(2, f"monarch-hpc: error: {problem}\n".encode(errors="backslashreplace"))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))
