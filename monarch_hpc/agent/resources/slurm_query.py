"""Asks Slurm why a job or a host has ended, once for each end, on a thread: the engine must not wait for slurmctld."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from monarch_hpc.core.death import Death
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["ANSWER_S", "SlurmQuery"]

ANSWER_S = 2.0
"""Longest wait for Slurm's word, which takes some 20 ms; it is a part of `procs.cause_s`, which callers wait."""

_log = Logger(__name__)


class SlurmQuery:
    """Slurm's word on the ends of one job and its hosts.

    Args:
        job_id: the job; None where there is none, and nothing is asked.
        environ: the environment for Slurm's commands.
    """

    def __init__(self, engine: Engine, job_id: int | None, environ: Mapping[str, str]) -> None:
        self._engine = engine
        self._job_id = job_id
        self._environ = environ

    def ask(self, host: str, answered: Callable[[Death | None], None]) -> None:
        """Call *answered* once, on the driver: with why the job has lost *host*, or why the job ends if that is empty.

        It is called with None if Slurm finds nothing wrong, does not answer in time, or is not there; in the last case
        before this returns.
        """
        if self._job_id is None:
            answered(None)
            return
        waiting = [answered]

        def answer(death: Death | None) -> None:
            if waiting:
                waiting.pop()(death)

        self._engine.call_later(ANSWER_S, lambda: answer(None))
        threading.Thread(target=partial(self._work, host, answer), name="monarch-cause", daemon=True).start()

    def _work(self, host: str, answer: Callable[[Death | None], None]) -> None:
        # Loaded here: most processes never ask.
        from monarch_hpc.slurm.commands.client import SlurmClient
        from monarch_hpc.slurm.death import ask_death

        assert self._job_id is not None
        death = None
        try:
            death = ask_death(SlurmClient(self._environ, ANSWER_S), self._job_id, host)
        except (MonarchError, OSError) as error:
            _log.warning("Slurm could not be asked what has become of %s: %s", host or f"job {self._job_id}", error)
        self._engine.call_soon(lambda: answer(death))
