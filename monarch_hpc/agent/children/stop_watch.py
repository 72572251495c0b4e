"""Watches whether our procs are stopped: nobody tells us, and to their peers they only look busy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.supervision.lease import Lease, Liveness
from monarch_hpc.supervision.standstill import Standstill
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.timer import Timer

__all__ = ["Changed", "StoppedProcs"]

Changed = Callable[[Liveness, float], None]
"""Told on the driver what became of a process, and how long it has been stopped, in seconds."""


@dataclass(slots=True)
class _Watched:
    standstill: Standstill
    life: Liveness
    changed: Changed


class StoppedProcs:
    """Looks at the watched processes' state once in a heartbeat. From callbacks of the engine only.

    Args:
        heartbeat_s: between two looks, in seconds.
        lease: how long a process may be stopped.
    """

    def __init__(self, engine: Engine, heartbeat_s: float, lease: Lease) -> None:
        self._engine = engine
        self._heartbeat_s = heartbeat_s
        self._lease = lease
        self._watched: dict[int, _Watched] = {}
        self._timer: Timer | None = None

    def watch(self, pid: int, changed: Changed) -> None:
        """Tell *changed* whenever the life of a child changes; `forget` it when it is reaped."""
        standstill = Standstill(self._lease, self._heartbeat_s, self._engine.clock())
        self._watched[pid] = _Watched(standstill, Liveness.ALIVE, changed)
        if self._timer is None:
            self._timer = self._engine.call_later(self._heartbeat_s, self._check)

    def forget(self, pid: int) -> None:
        """Look no more; unknown processes are ignored."""
        self._watched.pop(pid, None)

    def _check(self) -> None:
        self._timer = self._engine.call_later(self._heartbeat_s, self._check) if self._watched else None
        now_s = self._engine.clock()
        for pid, watched in list(self._watched.items()):
            life, stopped_s = watched.standstill.see(_state(pid), now_s)
            if life is not watched.life:
                watched.life = life
                watched.changed(life, stopped_s)


def _state(pid: int) -> str:
    """The state letter of a process that is not reaped yet."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split(maxsplit=1)[0].decode()
