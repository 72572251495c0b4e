"""Forks the tasks of jobs; run as ``python -P -m``, with the variables and in the working folder of their submission.

It has loaded what each task needs, so that a task starts in milliseconds; and it has one thread, so that its forks are
as whole as processes that were started anew. It ends, and all its tasks with it, when its standard input ends.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import selectors
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from submitit.core import plugins
from submitit.core.submission import process_job

from monarch_hpc.submitit.pickles import keep_pickles_private
from monarch_hpc.submitit.tasks.task_order import READY, TaskOrder, decode_order
from monarch_hpc.submitit.tasks.working_folder import admit_working_folder

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_CHUNK = 1 << 16


class _Server:
    """The loop of the server.

    Args:
        answers: the descriptor on which it answers.
        warning: what each task says first in its error stream; may be empty.

    Attributes:
        task: in a fork, what it does; None in the server itself.
    """

    def __init__(self, answers: int, warning: str) -> None:
        self._answers = answers
        self._warning = warning
        self.task: Callable[[], None] | None = None
        self._pending = b""
        self._tasks: dict[int, str] = {}
        self._children, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(self._wakeup)

    def serve(self) -> None:
        """Fork tasks until the input ends, or in a fork return at once."""
        self._answer({READY: os.getpid()})
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            selector.register(self._children, selectors.EVENT_READ)
            while self.task is None:
                for key, _ in selector.select():
                    if key.fd == self._children:
                        os.read(self._children, _CHUNK)
                        self._reap()
                    elif not self._read():
                        return
                    if self.task is not None:
                        return

    def _read(self) -> bool:
        """Carry out orders; return False at the end of input."""
        data = os.read(0, _CHUNK)
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._fork(decode_order(line))
            if self.task is not None:
                break
        return bool(data)

    def _fork(self, order: TaskOrder) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._answer({"key": order.key, "problem": f"it cannot be started: {error.strerror}"})
            return
        if pid:
            self._tasks[pid] = order.key
            self._answer({"key": order.key, "pid": pid})
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != server:  # it has died meanwhile
            os._exit(128 + signal.SIGKILL)
        for fd in (self._answers, self._children, self._wakeup):
            os.close(fd)
        self.task = lambda: _run(order, self._warning)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                key = self._tasks.pop(pid, None)
                if key is not None:
                    self._answer({"key": key, "code": os.waitstatus_to_exitcode(status)})

    def _answer(self, fields: dict[str, object]) -> None:
        data = json.dumps(fields).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]


def _run(order: TaskOrder, warning: str) -> None:
    """Become the task."""
    os.umask(order.umask)
    null = os.open(os.devnull, os.O_RDONLY)
    out = _open(order.out)
    err = out if order.err == order.out else _open(order.err)
    for fd, at in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, at)
    for fd in {null, out, err} - {0, 1, 2}:
        os.close(fd)
    if warning:
        print(warning, file=sys.stderr, flush=True)
    os.environ.update(order.environment)
    process_job(order.folder)


def _open(path: str) -> int:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _end(task: Callable[[], None]) -> NoReturn:
    """Carry out *task*, and end this fork as the interpreter ends a program.

    But modules are not torn down: with numpy that takes ten times as long as all the rest of a short task.
    """
    code = 1
    try:
        task()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 the outermost frame
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            vars(threading)["_shutdown"]()  # waits for the threads that are not daemons
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code & 0xFF)


def main() -> None:
    """Serve; in a fork, run its task."""
    answers = int(sys.argv[1])
    os.set_inheritable(answers, False)
    warning = admit_working_folder()
    keep_pickles_private()
    plugins.get_job_environments()  # each fork would search all installed packages for them
    server = _Server(answers, warning)
    gc.collect()
    gc.freeze()  # forks share what is never written
    server.serve()
    if server.task is not None:
        _end(server.task)


if __name__ == "__main__":
    main()
