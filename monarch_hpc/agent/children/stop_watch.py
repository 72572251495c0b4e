"""Detects what the kernel does not report of procs: that a signal has stopped one, or that it runs another program.

To its peers, the first one only looks busy; the second one has left them by an exec, and lives.
"""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.supervision.standstill import Standstill
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer

__all__ = ["Changed", "Replaced", "StoppedProcs"]

Replaced = Callable[[], None]
"""Called on the driver when a process runs another program than when it was first looked at."""

Changed = Callable[[Liveness, float], None]
"""Called on the driver with a process's new liveness, and the seconds that it has been stopped."""


@dataclass(slots=True)
class _Watched:
    standstill: Standstill
    life: Liveness
    changed: Changed
    replaced: Replaced
    stack: int


class StoppedProcs:
    """Checks the state of the watched processes once per heartbeat. Must be used from the engine's callbacks only.

    Args:
        heartbeat_s: seconds between two checks.
        lease: how long a process may be stopped.
    """

    def __init__(self, engine: Engine, heartbeat_s: float, lease: Lease) -> None:
        self._engine = engine
        self._heartbeat_s = heartbeat_s
        self._lease = lease
        self._watched: dict[int, _Watched] = {}
        self._timer: Timer | None = None

    def watch(self, pid: int, changed: Changed, replaced: Replaced) -> None:
        """Call *changed* whenever a child's liveness changes, and *replaced* once it runs another program.

        Call `forget` when the child is reaped.
        """
        standstill = Standstill(self._lease, self._heartbeat_s, self._engine.clock())
        found = read_stat(pid)
        stack = 0 if found is None else found.stack_address
        self._watched[pid] = _Watched(standstill, Liveness.ALIVE, changed, replaced, stack)
        if self._timer is None:
            self._timer = self._engine.call_later(self._heartbeat_s, self._check)

    def forget(self, pid: int) -> None:
        """Stop watching a process; unknown pids are ignored."""
        self._watched.pop(pid, None)

    def _check(self) -> None:
        self._timer = self._engine.call_later(self._heartbeat_s, self._check) if self._watched else None
        now_s = self._engine.clock()
        for pid, watched in list(self._watched.items()):
            found = read_stat(pid)
            if found is None:
                continue  # a task of a step: its own parent reaps it, and then reports its end
            if watched.stack and found.stack_address not in (0, watched.stack):
                watched.stack = 0
                watched.replaced()
                continue
            life, stopped_s = watched.standstill.see(found.state, now_s)
            if life is not watched.life:
                watched.life = life
                watched.changed(life, stopped_s)
