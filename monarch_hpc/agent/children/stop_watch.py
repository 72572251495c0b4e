"""Detects procs stopped by a signal: the kernel does not report it, and to their peers they only look busy."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.procfs import read_stat
from monarch_hpc.supervision.liveness import Lease, Liveness
from monarch_hpc.supervision.standstill import Standstill
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.sources import Timer

__all__ = ["Changed", "StoppedProcs"]

Changed = Callable[[Liveness, float], None]
"""Called on the driver with a process's new liveness, and the seconds that it has been stopped."""


@dataclass(slots=True)
class _Watched:
    standstill: Standstill
    life: Liveness
    changed: Changed


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

    def watch(self, pid: int, changed: Changed) -> None:
        """Call *changed* whenever a child's liveness changes; call `forget` when the child is reaped."""
        standstill = Standstill(self._lease, self._heartbeat_s, self._engine.clock())
        self._watched[pid] = _Watched(standstill, Liveness.ALIVE, changed)
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
            life, stopped_s = watched.standstill.see(found.state, now_s)
            if life is not watched.life:
                watched.life = life
                watched.changed(life, stopped_s)
