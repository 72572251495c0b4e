"""Slurm's word that the host of a lost head has left the job: the missing voice where too few others are left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["SlurmWord"]

_PAUSE_S = 2.0
"""Time between two questions. Slurm notices a host without power after half a minute, or after `SlurmdTimeout`; an
agent asks until `liveness.fence_s` has passed."""

_ANSWER_S = 5.0

_log = Logger(__name__)


class SlurmWord:
    """Asks Slurm, on a thread, for the hosts of one job. To be used on the engine's driver.

    Args:
        job_id: the job; None where there is none, and nothing is asked.
        environ: the environment for Slurm's commands.
    """

    def __init__(self, engine: Engine, job_id: int | None, environ: Mapping[str, str]) -> None:
        self._engine = engine
        self._job_id = job_id
        self._environ = environ
        self._asking = False

    @property
    def counts(self) -> bool:
        """Whether there is a job of which Slurm knows the hosts."""
        return self._job_id is not None

    def ask(self, host: str, gone: Callable[[], None]) -> None:
        """Call *gone* if the job runs on without *host*; nothing is asked while an earlier question is open."""
        if self._job_id is None or self._asking:
            return
        self._asking = True
        work = partial(self._work, self._job_id, host, gone)
        threading.Thread(target=work, name="monarch-succession", daemon=True).start()

    def _work(self, job_id: int, host: str, gone: Callable[[], None]) -> None:
        # Loaded here: most agents never ask.
        from monarch_hpc.slurm.commands.client import SlurmClient
        from monarch_hpc.slurm.ghost import runs_without

        try:
            job = SlurmClient(self._environ, _ANSWER_S).find_job(job_id)
            if job is not None and runs_without(job, host):
                self._engine.call_soon(gone)
        except (MonarchError, OSError) as error:
            _log.warning("Slurm could not be asked whether job %d goes on without %s: %s", job_id, host, error)
        self._engine.call_soon(self._rest)

    def _rest(self) -> None:
        def ask_again() -> None:
            self._asking = False

        self._engine.call_later(_PAUSE_S, ask_again)
