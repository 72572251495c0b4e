"""Slurm's word that the host of a lost head has left the job: the missing voice where too few others are left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from monarch_hpc.agent.resources.slurm_query import SlurmQuery
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["SlurmWord"]

_PAUSE_S = 2.0
"""Time between two questions. Slurm notices a host without power after half a minute, or after `SlurmdTimeout`; an
agent asks until `liveness.fence_s` has passed."""


class SlurmWord:
    """Asks for a host again and again, one question at a time. To be used on the engine's driver."""

    def __init__(self, engine: Engine, slurm: SlurmQuery) -> None:
        self._engine = engine
        self._slurm = slurm
        self._asking = False

    @property
    def counts(self) -> bool:
        """Whether there is a job of which Slurm knows the hosts."""
        return self._slurm.has_job

    def note_hosts(self, hosts: Iterable[HostEntry]) -> None:
        """Learn which jobs have which hosts."""
        self._slurm.note_hosts(hosts)

    def ask(self, host: str, gone: Callable[[], None]) -> None:
        """Call *gone* if the job runs on without *host*; nothing is asked while an earlier question is open."""
        if self._asking or not self.counts:
            return
        self._asking = True

        def answered(is_gone: bool) -> None:
            if is_gone:
                gone()
            self._engine.call_later(_PAUSE_S, self._rest)

        self._slurm.ask_gone(host, answered)

    def ask_rank(self, hosts: Sequence[str], rank: int, gone: Callable[[], None]) -> None:
        """Ask for the host of this *rank* among the *hosts* that are known, as Slurm names them."""
        if rank < len(hosts) and hosts[rank]:
            self.ask(hosts[rank], gone)

    def _rest(self) -> None:
        self._asking = False
