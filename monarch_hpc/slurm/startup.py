"""Waits for an allocation's agents, through the queue and requeues of its job."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from monarch_hpc.config.schema import SlurmConfig
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import SlurmBusy
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.jobs import JobDetail
from monarch_hpc.slurm.commands.states import Phase
from monarch_hpc.slurm.directory import Seen
from monarch_hpc.slurm.failure import agents_missing, job_failed
from monarch_hpc.slurm.job import Lifecycle, Stage, how_it_ended
from monarch_hpc.slurm.record import AllocationRecord
from monarch_hpc.slurm.registry import Registry, Snapshot

__all__ = ["PollInterval", "Startup"]

# Interval between reads of the directory: too short to be noticed, long enough to be cheap for a file server.
_LOOK_S = 0.15
# Commands of many users that started together, as after a maintenance, would otherwise ask together for ever.
_VARIATION = 0.2
# At most sites that is one request in eight minutes.
_MAX_SLOWNESS = 8
# Time for slurmctld to notice the end of a batch script.
_NOTICE_S = 5.0
# A requeued job ends first, which takes the site's KillWait (30 s by default) and its epilogue.
_END_S = 120.0


class PollInterval:
    """The interval between two requests to slurmctld: it grows, varies, and doubles when slurmctld is overloaded.

    Args:
        min_s: the first interval, in seconds.
        max_s: the longest one of a slurmctld that answers.
        vary: returns a random number from 0 up to 1.
    """

    def __init__(self, min_s: float, max_s: float, vary: Callable[[], float]) -> None:
        self.current_s = min_s
        self._max_s = max_s
        self._vary = vary
        self._slowness = 1

    def take(self, *, granted: bool) -> float:
        """Return the time until the next request, and make the one after that longer.

        Args:
            granted: whether the job runs; then its files show its state, and squeue is for jobs that die without any.
        """
        # Never shorter, which sites forbid, but not in step with the commands of other users.
        interval_s = self.current_s * (1 + _VARIATION * self._vary())
        longest_s = self._max_s * self._slowness
        self.current_s = longest_s if granted else min(self.current_s * 2, longest_s)
        return interval_s

    def slow_down(self) -> None:
        """Ask half as often from here on: slurmctld did not answer, or refused because of its rate limit."""
        if self._slowness < _MAX_SLOWNESS:
            self._slowness *= 2
            self.current_s *= 2


class Startup:
    """The startup of one allocation.

    Args:
        config: Slurm's polling intervals, and the deadline of the agents.
        registry: closes the record if the job ends.
        slurm: Slurm's commands.
        snapshot: returns squeue's output for these records, at most the given number of seconds old.
        record: a record with a job.
        min_hosts: see `Lifecycle`.
        look: returns what the files show.
    """

    def __init__(
        self,
        config: SlurmConfig,
        registry: Registry,
        slurm: SlurmClient,
        snapshot: Callable[[Sequence[AllocationRecord], float], Snapshot],
        record: AllocationRecord,
        min_hosts: int | None,
        look: Callable[[], Seen],
    ) -> None:
        self._config = config
        self._registry = registry
        self._slurm = slurm
        self._snapshot = snapshot
        self._record = record
        self._min_hosts = min_hosts
        self._look = look

    def follow(self, report: Callable[[Lifecycle], None], stop: Callable[[], bool]) -> Lifecycle:
        """Wait until the agents are ready; see `Allocations.follow`."""
        slurm = self._config
        life = Lifecycle(slurm.bootstrap_s, min_hosts=self._min_hosts)
        interval = PollInterval(slurm.poll_min_s, slurm.poll_max_s, random.random)
        poll = Deadline(0.0)
        while not stop():
            was_granted = life.granted is not None
            life = life.see_files(self._look(), time.monotonic())
            just_granted = life.granted is not None and not was_granted
            if poll.passed() or just_granted:
                # Only an answer that is newer than the grant has the job's end.
                try:
                    life = self._see_slurm(life, 0.0 if just_granted else 0.9 * interval.current_s)
                except SlurmBusy:
                    interval.slow_down()
                poll = Deadline(interval.take(granted=life.granted is not None))
            if life.stage is Stage.ENDED:
                life = self._requeued_or_failed(life)
            if life.overdue(time.monotonic()):
                life = self._requeued_or_overdue(life)
            report(life)
            if life.stage is Stage.READY:
                return life
            time.sleep(_LOOK_S)
        return life

    def _see_slurm(self, life: Lifecycle, max_age_s: float) -> Lifecycle:
        # All of the user's waiting commands share one squeue.
        row = self._snapshot(self._registry.jobs(), max_age_s).rows().get(self._record.job_name)
        if row is not None and row.state.phase.alive:
            if life.granted is not None and row.state.phase is not Phase.RUNNING:
                # Either requeued, or squeue's answer is older than the files: ask scontrol.
                life = life.see_detail(self._find_job())
            return life.see_queue(row, time.monotonic())
        return life.see_detail(self._find_job())

    def _requeued_or_overdue(self, life: Lifecycle) -> Lifecycle:
        """Return the state of a job that was requeued while its agents were awaited.

        Raises:
            AllocationError: the job was not requeued.
        """
        try:
            requeued = life.see_detail(self._find_job())
        except SlurmBusy:
            requeued = life
        if requeued.restarts == life.restarts:
            raise agents_missing(self._record, life)
        return requeued

    def _requeued_or_failed(self, life: Lifecycle) -> Lifecycle:
        """Return the state of a job whose script ended because the job was requeued.

        Raises:
            JobFailed: the job ended for good; its record is closed.
        """
        detail = life.detail
        # The script reports its end a moment before Slurm does; whether a job was requeued only Slurm can tell.
        soon, late = Deadline(_NOTICE_S), Deadline(_END_S)
        while detail is None or detail.state.phase.alive:
            try:
                detail = self._find_job()
            except SlurmBusy:
                break
            if detail is None:
                break
            requeued = life.see_detail(detail)
            if requeued.restarts > life.restarts:
                return requeued
            if late.passed() or (soon.passed() and not detail.requeues):
                break
            time.sleep(_LOOK_S if detail.state.phase.alive else 0)
        if detail is not None and detail.state.phase.alive:
            detail = None
        ended = how_it_ended(self._record, detail, life.exit_status, time.time())
        self._registry.close(self._record, ended)
        raise job_failed(self._record, life, detail, ended)

    def _find_job(self) -> JobDetail | None:
        assert self._record.job_id is not None
        return self._slurm.find_job(self._record.job_id, self._record.job_name)
