"""Detects the exit of children at once, with its cause, and reaps orphans that the kernel reparents to the agent."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection

from monarch_hpc.core.process.exit import Exit
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Reaper"]

_COLLECT_S = 1.0


class Reaper:
    """Watches the children of this process.

    Args:
        num_oom_kills: reads the control group's counter of OOM kills.

    Attributes:
        engine: calls back.
    """

    def __init__(self, engine: Engine, num_oom_kills: Callable[[], int]) -> None:
        self.engine = engine
        self._num_oom_kills = num_oom_kills
        self._seen_oom_kills = num_oom_kills()
        self._watched: dict[int, tuple[int, Callable[[Exit], None]]] = {}  # pid -> pidfd, callback
        self._timer = engine.call_later(_COLLECT_S, self._collect)

    @property
    def watched(self) -> Collection[int]:
        """The pids of the watched children."""
        return self._watched.keys()

    def watch(self, pid: int, ended: Callable[[Exit], None]) -> None:
        """Call *ended* once, on the driver, after child *pid* has exited and its process group has been killed.

        The child must lead its process group.
        """
        pidfd = os.pidfd_open(pid)
        self._watched[pid] = (pidfd, ended)
        self.engine.watch(pidfd, lambda _mask: self._reap(pid))

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        for pidfd, _ in self._watched.values():
            self.engine.unwatch(pidfd)
            os.close(pidfd)
        self._watched.clear()

    def _reap(self, pid: int) -> None:
        # WNOWAIT: the pid cannot be reused while the group is killed.
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED)
        pidfd, ended = self._watched.pop(pid)
        self.engine.unwatch(pidfd)
        os.close(pidfd)
        if found.si_code == os.CLD_EXITED:
            ended(Exit(found.si_status, None))
        else:
            ended(Exit(None, found.si_status, found.si_status == signal.SIGKILL and self._new_oom_kill()))

    def _new_oom_kill(self) -> bool:
        before, self._seen_oom_kills = self._seen_oom_kills, self._num_oom_kills()
        return self._seen_oom_kills > before

    def _collect(self) -> None:
        """Reap orphans; once a second is enough for zombies."""
        self._timer = self.engine.call_later(_COLLECT_S, self._collect)
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in self._watched:
                    self._reap(found.si_pid)
                else:
                    os.waitid(os.P_PID, found.si_pid, os.WEXITED)
