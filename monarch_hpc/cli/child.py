"""Runs the user's program as a child of `run`: forwards each signal once, and mirrors its exit code."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.process.spawn import launch

__all__ = ["Child", "End", "await_signal", "block_signals", "wake"]

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_WAKE = signal.SIGUSR1
_SIGNALS = _STOPPING | {signal.SIGCHLD, _WAKE}
_SI_KERNEL = 0x80
_PR_SET_PDEATHSIG = 1
_LONG_S = 3600.0
_SPARED_S = 0.5
"""Interval between looks whether a process that must end soon has more time."""


class End(enum.Enum):
    """Why a program ended."""

    ITSELF = enum.auto()
    STOPPED = enum.auto()  # by a signal to it or to this process
    ABANDONED = enum.auto()  # because its allocation is gone
    LATE = enum.auto()  # because its time was over


def block_signals() -> None:
    """Block the signals that `await_signal` waits for, for the rest of this process's life."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def await_signal(timeout_s: float) -> bool:
    """Wait for a signal or a `wake`; return whether it was a request to stop."""
    info = signal.sigtimedwait(_SIGNALS, timeout_s)
    return info is not None and info.si_signo in _STOPPING


def wake() -> None:
    """Make the main thread's wait return; callable from any thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)


class Child:
    """A process in this process group, with the same terminal and standard streams.

    It gets SIGTERM when this process dies, however that happens. `block_signals` must be called before, and no thread
    may have been started before that.

    Raises:
        OSError: the process cannot be started.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = launch(argv, environment, before_exec=partial(_settle, os.getpid()))

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def exit_code(self) -> int:
        """The exit code as in shells: 128 plus the number of the signal, if one ended the process."""
        code = self._process.returncode
        assert code is not None
        return code if code >= 0 else 128 - code

    @property
    def killed(self) -> bool:
        """Whether a signal has ended the process."""
        return self._process.returncode is not None and self._process.returncode < 0

    def wait(
        self,
        abandoned: Callable[[], bool],
        grace_s: float,
        spared: Callable[[], bool] = lambda: False,
        limit: Deadline | None = None,
    ) -> End:
        """Wait for the process to end, and forward signals to it.

        After the first signal, or when *abandoned* returns true, it has *grace_s* seconds to end by itself, and longer
        while *spared* returns true; a second signal kills it at once. When *limit* has passed, it is as after SIGTERM.
        """
        end = End.ITSELF
        deadline: Deadline | None = None
        while self._process.poll() is None:
            until = deadline or limit
            info = signal.sigtimedwait(_SIGNALS, min(until.left_s(), _LONG_S) if until else _LONG_S)
            if info is not None and info.si_signo in _STOPPING:
                if end is End.STOPPED and not spared():
                    self._process.kill()
                # A signal of the terminal goes to the whole foreground group: the child already has it.
                elif info.si_code != _SI_KERNEL:
                    self._process.send_signal(info.si_signo)
                end = End.STOPPED
                deadline = deadline or Deadline(grace_s)
            elif deadline is None and (abandoned() or (limit is not None and limit.passed())):
                end = End.ABANDONED if abandoned() else End.LATE
                self._process.terminate()
                deadline = Deadline(grace_s)
            if deadline is not None and deadline.passed():
                if spared():
                    deadline = Deadline(_SPARED_S)
                else:
                    self._process.kill()
        return end

    def end(self, grace_s: float) -> None:
        """End the process: SIGTERM, and SIGKILL after *grace_s* seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            self.wait(lambda: True, grace_s)


def _settle(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
