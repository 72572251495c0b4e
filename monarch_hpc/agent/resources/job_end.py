"""Learns from Slurm when it will end the job of this host, and how much time it leaves after SIGTERM."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.allocation.files import GRANTED, WARNED
from monarch_hpc.config import Config
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.core.logger import Logger
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["KILL_WAIT_S", "JobEndSource"]

_LOOK_S = 1.0
"""Interval between looks for the batch script's file: one request to the file system, and short against any notice."""

_END_VARIABLE = "SLURM_JOB_END_TIME"
"""The end of the job in seconds since the epoch; 22.05 and older do not set it, and are asked."""

KILL_WAIT_S = 30.0
"""Slurm's own default, where it does not answer."""

_log = Logger(__name__)


class JobEndSource:
    """Asks Slurm at the start, and once more when the batch script is warned: an administrator may have cut the job.

    Args:
        learned: called on the driver with the seconds left to the job; None where they cannot be learned.
        warned: called on the driver when the batch script has got Slurm's warning, after `learned`.

    Attributes:
        grace_s: time between SIGTERM and SIGKILL.
    """

    def __init__(
        self,
        engine: Engine,
        args: AgentArgs,
        config: Config,
        learned: Callable[[float | None], None],
        warned: Callable[[], None],
    ) -> None:
        grace_s = config.limits.preempt_grace_s
        self.grace_s = KILL_WAIT_S if grace_s is None else grace_s
        self._engine = engine
        self._environment = args.environment
        self._file = args.folder / WARNED
        self._timeout_s = config.slurm.command_timeout_s
        self._learned = learned
        self._warned = warned
        # An embedded host in a job ends with its program, not with the job.
        if args.job_id is None or not (args.folder / GRANTED).exists():
            learned(None)
            return
        end = args.environment.get(_END_VARIABLE, "")
        if end.isdecimal():
            learned(int(end) - time.time())
        work = partial(self._work, with_end=not end.isdecimal(), with_grace=grace_s is None)
        # A busy slurmctld answers after many seconds, and a file system may stall: the engine must not wait for them.
        threading.Thread(target=work, name="monarch-job-end", daemon=True).start()

    def _work(self, *, with_end: bool, with_grace: bool) -> None:
        self._ask(with_end=with_end, with_grace=with_grace)
        while not self._file.exists():
            time.sleep(_LOOK_S)
        self._ask(with_end=True, with_grace=False)
        self._engine.call_soon(self._warned)

    def _ask(self, *, with_end: bool, with_grace: bool) -> None:
        from monarch_hpc.slurm.commands.argv import own_job_id  # only the head asks, and only in a job
        from monarch_hpc.slurm.commands.client import SlurmClient

        slurm = SlurmClient(self._environment, self._timeout_s)
        job_id = own_job_id(self._environment)
        left_s: float | None = None
        try:
            if with_end:
                detail = slurm.find_job(job_id)
                end_s = None if detail is None else detail.end_s
                left_s = None if end_s is None else end_s - time.time()
        except (MonarchError, OSError) as error:
            _log.warning("the end of job %s is unknown: %s", job_id, error)
        if with_end:
            self._engine.call_soon(partial(self._learned, left_s))
        try:
            if with_grace:
                self.grace_s = slurm.read_kill_wait()
        except (MonarchError, OSError) as error:
            _log.warning("Slurm's KillWait is unknown, %.0f s are assumed: %s", self.grace_s, error)
