"""The user's program as a child of `run`: started, signalled once, mirrored."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.spawn import launch

__all__ = ["Child", "End", "await_signal", "block_signals", "wake"]

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_WAKE = signal.SIGUSR1
_SIGNALS = _STOPPING | {signal.SIGCHLD, _WAKE}
_SI_KERNEL = 0x80
_PR_SET_PDEATHSIG = 1
_LONG_S = 3600.0


class End(enum.Enum):
    """Why a program ended."""

    ITSELF = enum.auto()
    STOPPED = enum.auto()  # by a signal that was meant for it
    ABANDONED = enum.auto()  # because what it ran on is gone


def block_signals() -> None:
    """Keep the signals of `await_signal` for it, for the rest of this process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def await_signal(timeout_s: float) -> bool:
    """Wait for a signal or a `wake`; tell whether somebody asked this process to stop."""
    info = signal.sigtimedwait(_SIGNALS, timeout_s)
    return info is not None and info.si_signo in _STOPPING


def wake() -> None:
    """Make the main thread look again; from any thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, _WAKE)


class Child:
    """A process in our process group, with our terminal and standard streams.

    It gets SIGTERM when we die, however that happens. `block_signals` comes first, and no thread before it.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = launch(argv, environment, before_exec=partial(_settle, os.getpid()))

    @property
    def exit_code(self) -> int:
        """Its exit code as shells show it: 128 and the number of the signal that ended it."""
        code = self._process.returncode
        assert code is not None
        return code if code >= 0 else 128 - code

    def wait(self, abandoned: Callable[[], bool], grace_s: float) -> End:
        """Wait for its end; pass on signals.

        The first signal, or *abandoned*, leaves it *grace_s* seconds to end by itself; a second signal none.
        """
        end = End.ITSELF
        deadline: Deadline | None = None
        while self._process.poll() is None:
            info = signal.sigtimedwait(_SIGNALS, deadline.left_s() if deadline else _LONG_S)
            if info is not None and info.si_signo in _STOPPING:
                if end is End.STOPPED:
                    self._process.kill()
                # The terminal signals the whole foreground group: the child has had that one already.
                elif info.si_code != _SI_KERNEL:
                    self._process.send_signal(info.si_signo)
                end = End.STOPPED
                deadline = deadline or Deadline(grace_s)
            elif deadline is None and abandoned():
                end = End.ABANDONED
                self._process.terminate()
                deadline = Deadline(grace_s)
            if deadline is not None and deadline.passed():
                self._process.kill()
        return end

    def end(self, grace_s: float) -> None:
        """End it: SIGTERM, and SIGKILL after *grace_s* seconds."""
        if self._process.poll() is None:
            self._process.terminate()
            self.wait(lambda: True, grace_s)


def _settle(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
