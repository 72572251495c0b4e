"""Asks Slurm about a job and its hosts, on a thread: the engine must not wait for slurmctld."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from monarch_hpc.agent.resources.last_leave import LOOK_S, is_listening
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.relaunch import HostStanding
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["ANSWER_S", "SlurmQuery"]

ANSWER_S = 2.0
"""Longest wait for Slurm's word, which takes some 20 ms; it is a part of `procs.cause_s`, which callers wait."""
_GONE_S = 5.0
"""The same for a question in the background, asked while slurmctld may be waiting for a dead host."""

_log = Logger(__name__)
_A = TypeVar("_A")


class SlurmQuery:
    """Slurm's word on an allocation's job, on its hosts, and on those of jobs that have joined it.

    Args:
        job_id: the job; None where there is none, and nothing is asked.
        environ: the environment for Slurm's commands.
        output: that of the job, which says why the agents' step has ended where Slurm knows only that it has.
        answer_s: longest wait for Slurm's word, in seconds.
        gone_s: the same for a question in the background.
    """

    def __init__(
        self,
        engine: Engine,
        job_id: int | None,
        environ: Mapping[str, str],
        output: Path | None = None,
        *,
        answer_s: float = ANSWER_S,
        gone_s: float = _GONE_S,
    ) -> None:
        self._engine = engine
        self._job_id = job_id
        self._environ = environ
        self._output = output
        self._answer_s = answer_s
        self._gone_s = gone_s
        self._is_silent = False
        self._jobs: dict[str, int] = {}  # host -> its job, if it is known

    def note_hosts(self, hosts: Iterable[HostEntry]) -> None:
        """Learn which jobs have which hosts."""
        self._jobs.update({host.name: host.job_id for host in hosts if host.job_id})

    @property
    def has_job(self) -> bool:
        """Whether there is a job that Slurm can be asked about."""
        return self._job_id is not None

    def ask(self, host: str, answered: Callable[[Death | None], None]) -> None:
        """Call *answered* once, on the driver: with why the job has lost *host*, or why the job ends if that is empty.

        It is called with None if Slurm finds nothing wrong, does not answer in time, or is not there; in the last case
        before this returns.
        """
        if self._job_id is None:
            answered(None)
        else:
            read = partial(self._read_death, self._jobs.get(host, self._job_id), host)
            self._ask(read, host, answered, self._answer_s)

    def ask_standing(self, host: str, addresses: Sequence[str], answered: Callable[[HostStanding], None]) -> None:
        """Call *answered* once, on the driver: with whether the job still has *host*, and it works.

        Slurm needs half a minute to find out that a host has no power. One where nothing answers, not even by a
        refusal, does not work. Without a job, every host works: it is this machine.

        Args:
            addresses: those of its earlier agent.
        """
        if self._job_id is None:
            answered(HostStanding.UP)
            return
        self._ask(
            partial(self._read_standing, self._jobs.get(host, self._job_id), host, addresses),
            host,
            lambda standing: answered(standing or HostStanding.UNKNOWN),
            self._answer_s + LOOK_S * len(addresses),
        )

    def ask_gone(self, host: str, answered: Callable[[bool], None]) -> None:
        """Call *answered* once, on the driver: with whether it is known that the job runs on without *host*.

        Also if *host* was in another job of the allocation, and that has ended.
        """
        if self._job_id is None:
            answered(False)
            return
        read = partial(self._read_gone, self._jobs.get(host, self._job_id), host)
        self._ask(read, host, lambda gone: answered(bool(gone)), self._gone_s)

    def _ask(
        self,
        read: Callable[[], _A | None],
        host: str,
        answered: Callable[[_A | None], None],
        limit_s: float,
    ) -> None:
        waiting = [answered]

        def answer(found: _A | None) -> None:
            if waiting:
                waiting.pop()(found)

        def work() -> None:
            found = None
            try:
                found = read()
                self._note_answer(None, host)
            except (MonarchError, OSError) as error:
                self._note_answer(error, host)
            self._engine.call_soon(lambda: answer(found))

        self._engine.call_later(limit_s, lambda: answer(None))
        threading.Thread(target=work, name="monarch-cause", daemon=True).start()

    def _note_answer(self, error: Exception | None, host: str) -> None:
        """Log that Slurm cannot be asked, and that it can be again: once each, however often it is asked meanwhile."""
        was_silent, self._is_silent = self._is_silent, error is not None
        if error is not None and not was_silent:
            _log.warning("Slurm could not be asked what has become of %s: %s", host or f"job {self._job_id}", error)
        elif error is None and was_silent:
            _log.warning("Slurm can be asked again")

    def _read_death(self, job_id: int, host: str) -> Death | None:
        # Loaded here and below: most processes never ask.
        from monarch_hpc.slurm.commands.client import SlurmClient
        from monarch_hpc.slurm.death import ask_death, step_death

        death = ask_death(SlurmClient(self._environ, self._answer_s), job_id, host)
        if death is not None and death.kind is DeathKind.EXIT and self._output is not None:
            return step_death(self._output) or death
        return death

    def _read_gone(self, job_id: int, host: str) -> bool:
        from monarch_hpc.slurm.commands.client import SlurmClient
        from monarch_hpc.slurm.commands.states import Phase
        from monarch_hpc.slurm.ghost import runs_without

        job = SlurmClient(self._environ, self._gone_s).find_job(job_id)
        if job is not None and job_id != self._job_id and job.state.phase is Phase.ENDED:
            return True  # its processes have ended, those of this agent's job go on
        return job is not None and runs_without(job, host)

    def _read_standing(self, job_id: int, host: str, addresses: Sequence[str]) -> HostStanding:
        from monarch_hpc.slurm.commands.client import SlurmClient
        from monarch_hpc.slurm.death import ask_standing

        standing = ask_standing(SlurmClient(self._environ, self._answer_s), job_id, host)
        silent = standing is HostStanding.UP and is_listening(addresses) is None
        return HostStanding.NOT_UP if silent else standing
