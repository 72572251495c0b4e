"""Submitit's handle of a job on an allocation; any process that sees the folder can have one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from submitit.core import core, utils

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.submitit.requests import ServiceRequest
from monarch_hpc.submitit.scheduler import NOTICE
from monarch_hpc.submitit.states import StateWatcher

__all__ = ["MonarchHpcJob"]

R = TypeVar("R", covariant=True)

_FIRST_LOOK_S, _LOOK_S = 0.005, 0.5
"""Time between looks of `wait` for the result: first, and at last."""

_ANSWER_S = 30.0
"""Time for the answer of the service; it needs milliseconds unless the machine is overloaded."""


class MonarchHpcJob(core.Job[R]):
    """A job that the service of an allocation has.

    Args:
        folder: submitit's folder, as it was given to the executor.
        job_id: the job's id.
        tasks: ranks of its tasks.
    """

    watcher: StateWatcher = StateWatcher()

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        self._place = utils.JobPaths.get_first_id_independent_folder(folder)
        super().__init__(folder, job_id, tasks)

    def _register_in_watcher(self) -> None:
        self.watcher.follow(self.job_id, self._place)

    def wait(self) -> None:
        """Wait until the job has ended."""
        pause_s = _FIRST_LOOK_S
        while not self.done():
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LOOK_S)

    def cancel(self, check: bool = True) -> None:
        """End the job: SIGTERM and, after `procs.stop_s`, SIGKILL; no-op if it has ended.

        Args:
            check: whether errors are raised.

        Raises:
            MonarchError: the allocation cannot be reached.
            TimeoutError: its service does not answer.
        """
        with contextlib.nullcontext() if check else contextlib.suppress(MonarchError, OSError):
            self._ask("cancel")

    def _interrupt(self, timeout: bool = False) -> None:
        """Send the job the signal that it gets before its time is over, for tests of checkpoints."""
        self._ask("signal", NOTICE)

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        # A result is waited for, on slow file systems, only where the job has left one.
        change = self.watcher.change(self.job_id, "cache")
        self._results_timeout_s = core.Job._results_timeout_s if self.task_id in change.results else 0
        return super()._get_outcome_and_result()

    def _ask(self, verb: str, number: int = 0) -> None:
        from monarch_hpc.submitit.link import ServiceEnded, link_to  # late: it loads the transport

        order = self.watcher.order(self.job_id)
        link = link_to(Path(order.directory), order.run)
        name, _, index = self.job_id.partition("_")
        request = ServiceRequest(os.urandom(8).hex(), verb, name, index=int(index or 0), number=number)
        if link is not None:
            with contextlib.suppress(ServiceEnded):  # and the job with it
                link.ask(request, _ANSWER_S)
