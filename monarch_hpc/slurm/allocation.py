"""Asks Slurm for allocations, follows their start, and releases them, with files and Slurm's commands."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import (
    AllocationError,
    MonarchError,
    SlurmBusy,
    SlurmParseError,
)
from monarch_hpc.core.storage.files import private_dir, write_private
from monarch_hpc.slurm.census import Census, queue_snapshot, take_census
from monarch_hpc.slurm.checks.plan import JobPlan, plan_job
from monarch_hpc.slurm.checks.site_rules import check_place
from monarch_hpc.slurm.commands.argv import flag_words
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.jobs import JobDetail, QueueRow
from monarch_hpc.slurm.commands.salloc import find_salloc_job, read_salloc_refusal
from monarch_hpc.slurm.commands.states import Phase
from monarch_hpc.slurm.commands.through_client import open_slurm
from monarch_hpc.slurm.directory import await_epilogue, hook_problem, look, prepare
from monarch_hpc.slurm.ghost import ask_agents, decide_ghost
from monarch_hpc.slurm.job import (
    IN_FLIGHT_S,
    Lifecycle,
)
from monarch_hpc.slurm.nodes.growth import look_joined, prepare_joining
from monarch_hpc.slurm.record import AllocationRecord, Ended, current_owner
from monarch_hpc.slurm.registry import Registry
from monarch_hpc.slurm.script import Request, plan_group_flags, render_salloc, render_script
from monarch_hpc.slurm.startup import Startup

__all__ = ["Allocations", "Released"]

_REQUESTED = "its release was requested"
# A job's end takes the site's KillWait (30 s by default) and its epilogue.
_END_S = 120.0
# Interval of looks for the number of a job, which salloc says as soon as slurmctld has answered.
_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Released:
    """The outcome of a release.

    Args:
        record: the closed record.
        left: number of our processes left on each host, as counted by the agents; None if no agent could be asked.
        waited_s: duration of the release, in seconds.
        problem: what the allocation's epilogue says of its failure; empty if it has none, or has not failed.
        joined: the closed records of the jobs that had joined it.
    """

    record: AllocationRecord
    left: Mapping[str, int] | None
    waited_s: float
    problem: str = ""
    joined: tuple[AllocationRecord, ...] = ()


class Allocations:
    """This user's allocations, according to this login node's registry and Slurm.

    Args:
        config: the configuration.
        registry: the records.
        slurm: Slurm's commands.
    """

    def __init__(self, config: Config, registry: Registry, slurm: SlurmClient) -> None:
        self.registry = registry
        self.slurm = slurm
        self._config = config

    @classmethod
    def open(cls, config: Config, patience_s: float = math.inf) -> Allocations:
        """Open the configured registry, with the Slurm commands on this process's PATH.

        Args:
            config: the configuration.
            patience_s: upper bound on the configured timeout of Slurm's commands, in seconds.
        """
        return cls(config, Registry(config.paths.state), open_slurm(config, os.environ, patience_s))

    def find(self, name: str | None) -> AllocationRecord:
        """Return the allocation that a command refers to, without asking Slurm. See `Registry.find`."""
        return self.registry.find(name)

    def reconcile(self, max_age_s: float = 0.0) -> Census:
        """Compare records with the queue; cancel orphaned jobs and close the records of jobs that ended.

        Args:
            max_age_s: a cached answer of squeue may be this old, in seconds.
        """
        return take_census(self.registry, self.slurm, max_age_s)

    def requeued(self, record: AllocationRecord, row: QueueRow | None) -> bool:
        """Tell whether Slurm has requeued the job since the newest files in its directory were written.

        Args:
            record: a record with a job.
            row: its row in squeue's output, possibly some seconds old; None if it was not listed.
        """
        granted = look(record.directory).granted
        if granted is None or row is None or row.state.phase in (Phase.RUNNING, Phase.ENDED):
            return False
        try:
            detail = self._find_job(record)
        except SlurmBusy:
            return False
        return detail is not None and detail.state.phase.alive and detail.restarts > granted.restarts

    def end_ghost(self, record: AllocationRecord) -> tuple[AllocationRecord, str]:
        """Cancel the job of an allocation whose head does not answer, if none of its hosts has an agent any more.

        Returns:
            The record, marked for release if its job was cancelled; and what was done, in words, empty if nothing.

        Raises:
            SlurmError: Slurm did not answer; nothing was cancelled.
        """
        seen = look(record.directory)
        if record.job_id is None or seen.ready is None or seen.released or seen.exit_status is not None:
            return record, ""
        job = self._find_job(record)
        restarts = seen.granted.restarts if seen.granted is not None else 0
        if job is None or job.restarts > restarts or record.release_why:
            return record, ""
        answers = ask_agents(self.slurm, job, record.allocation, self._config.slurm.command_timeout_s)
        why = decide_ghost(job, answers, seen.ready.head_name, job.batch_host)
        if not why:
            return record, ""
        record = self.registry.request_release(record, why)
        self.slurm.cancel(job.job_id)
        return record, f"{record.name}: job {job.job_id} was cancelled: {why}"

    def plan(self, request: Request) -> tuple[Request, JobPlan]:
        """Check a request against the site's rules and its reservation, and return it as it can be submitted.

        Raises:
            ConfigError: they refuse it.
        """
        check_place(self._config, self.slurm)
        plans = [plan_job(self._config, flags, self.slurm) for flags in plan_group_flags(self._config, request)]
        notes = tuple(dict.fromkeys(note for plan in plans for note in plan.notes))
        merged = replace(plans[0], notes=notes)
        if not request.groups:
            return replace(request, options=(*request.options, *merged.options)), merged
        groups = (
            replace(group, options=(*group.options, *plan.options))
            for group, plan in zip(request.groups, plans, strict=True)
        )
        return replace(request, groups=tuple(groups)), merged

    def submit(self, request: Request) -> AllocationRecord:
        """Ask Slurm for an allocation; the intent is on disk before sbatch runs.

        Raises:
            AllocationError: a live allocation has the name.
            SlurmBusy: slurmctld did not answer in time; should the job exist, the next command cancels it.
            SlurmCommandError: Slurm refused the job; nothing is left behind.
        """
        joined = request.joined
        by = "sbatch" if joined is not None else self._config.slurm.allocate_by
        self.slurm.require(by)
        script = render_script(self._config, request)
        holder = render_salloc(self._config, request) if by == "salloc" else ""
        first = plan_group_flags(self._config, request)[0]
        flags = dict(word[2:].partition("=")[::2] for word in flag_words(first))
        record = AllocationRecord(
            *(request.allocation, request.name, request.directory, request.size, current_owner(), time.time()),
            joins=joined.allocation if joined is not None else "",
            first_rank=joined.first_rank if joined is not None else 0,
            replaces=joined is not None and joined.replaces,
        )
        self.registry.create(record)
        try:
            private_dir(self._config.paths.shared)
            if joined is not None:
                path = prepare_joining(request.directory, script)
            else:
                path = prepare(request.directory, self._config, os.urandom(32), script, request.name)
            job_id = self._hold(record, holder, flags) if holder else self._submit(record, path, flags)
        except SlurmBusy:
            raise
        except (MonarchError, OSError) as error:
            self.registry.close(record, Ended("REFUSED", str(error).splitlines()[0], "monarch-hpc", time.time()))
            shutil.rmtree(request.directory, ignore_errors=True)
            raise
        return self.registry.set_job(record, job_id, time.time())

    def follow(
        self,
        record: AllocationRecord,
        report: Callable[[Lifecycle], None],
        stop: Callable[[], bool],
        min_hosts: int | None = None,
    ) -> Lifecycle:
        """Wait until the agents of *record* are ready.

        Args:
            record: a record with a job.
            report: called with the current state after each poll.
            stop: called before each poll; True ends the wait early and leaves the allocation as it is.
            min_hosts: number of hosts that suffice when others do not report in time; None if all must.

        Raises:
            JobFailed: the job ended before its agents were ready.
            AgentsMissing: agents did not report in time; the job still exists.
            AllocationError: the job runs, but wrote nothing into its directory; the job still exists.
        """
        look_up = partial(queue_snapshot, self.registry, self.slurm)
        view = partial(look_joined, self._home(record), record) if record.joins else partial(look, record.directory)
        startup = Startup(self._config.slurm, self.registry, self.slurm, look_up, record, min_hosts, view)
        return startup.follow(report, stop)

    def give_back(self, record: AllocationRecord, error: BaseException) -> None:
        """Release a job whose hosts are of no use after *error*, which is told whether that was possible."""
        try:
            self.release(record)
        except (MonarchError, OSError) as failed:
            error.add_note(f"job {record.job_id} could not be released yet: {failed}; 'monarch-hpc release' does it")
        else:
            error.add_note(f"job {record.job_id} was released; its output stays in {record.directory}")

    def release(
        self, record: AllocationRecord, shut_down: Callable[[Path], Mapping[str, int] | None] | None = None
    ) -> Released:
        """Release an allocation, and return when Slurm's queue no longer lists its jobs.

        Args:
            record: a live record.
            shut_down: asks the head in this directory to end our processes on all hosts, and returns the number of
                processes left by host, or None if there is no head.

        Raises:
            SlurmBusy: slurmctld does not answer; the request is recorded, and the next command retries it.
            AllocationError: the job still exists after two minutes.
        """
        started = Deadline(_END_S)
        jobs = [record, *self.registry.joined(record)]
        jobs = [self.registry.request_release(job, record.release_why or _REQUESTED) for job in jobs]
        record, left = jobs[0], None
        if shut_down is not None and look(record.directory).ready is not None:
            left = shut_down(record.directory)
        if left is not None:
            await_epilogue(record.directory)
        try:
            jobs = [self._await_number(job, started) if job.job_id is None else job for job in jobs]
            names = [job.job_name for job in jobs if job.live]
            # By the job ids that squeue lists under our job names: see `SlurmClient.find_job`.
            for row in self.slurm.queue(names) if names else ():
                self.slurm.cancel(row.job_id)
            for job in jobs:
                if job.live:
                    self._await_end(job, started)
        except SlurmBusy as error:
            error.add_note(f"'{record.name}' is marked for release: the next monarch-hpc command retries it")
            raise
        ended = Ended("RELEASED", record.release_why, "monarch-hpc", time.time())
        record, *joined = [self.registry.close(job, ended) if job.live else job for job in jobs]
        problem = hook_problem(record.directory)
        return Released(record, left, started.elapsed_s(), problem, tuple(joined))

    def _home(self, record: AllocationRecord) -> AllocationRecord:
        """The allocation that a job joins."""
        for one in self.registry.records():
            if one.allocation == record.joins:
                return one
        raise AllocationError(record.name, "has ended, and its record was removed")

    def _submit(self, record: AllocationRecord, script: Path, flags: Mapping[str, str]) -> int:
        try:
            return self.slurm.submit(script, flags)
        except (SlurmBusy, SlurmParseError) as error:
            # slurmctld may have accepted the request all the same: never submit twice, look for the job.
            row = self._look_for(record, error)
        return row.job_id

    def _hold(self, record: AllocationRecord, script: str, flags: Mapping[str, str]) -> int:
        """Start salloc apart from this process, and return the number of its job, which may wait."""
        path = record.directory / "salloc.sh"
        write_private(path, script.encode())
        self.slurm.start_apart(path)
        deadline = Deadline(self._config.slurm.command_timeout_s)
        while (job_id := find_salloc_job(record.directory)) is None:
            late = deadline.passed()
            refusal = read_salloc_refusal(record.directory)
            if refusal is not None:
                raise self.slurm.refusal(("salloc", "--no-shell"), *refusal, flags)
            if late:
                error = SlurmBusy(("salloc",), 124, f"no answer in {deadline.timeout_s:.0f} s")
                return self._look_for(record, error).job_id
            time.sleep(_LOOK_S)
        return job_id

    def _look_for(self, record: AllocationRecord, error: MonarchError) -> QueueRow:
        deadline = Deadline(IN_FLIGHT_S)
        asked = False
        while True:
            late = deadline.passed()
            try:
                rows = self.slurm.queue([record.job_name])
                asked = True
            except SlurmBusy:
                rows = ()
                asked = False
            if rows:
                return rows[0]
            if late:
                break
            time.sleep(min(2.0, deadline.left_s()))
        if asked:
            error.add_note(f"no job {record.job_name} appeared within {IN_FLIGHT_S:.0f} s; nothing was left behind")
            now_s = time.time()
            self.registry.close(record, Ended("NEVER_SUBMITTED", "slurmctld did not accept it", "monarch-hpc", now_s))
        else:
            error.add_note("should the job exist after all, the next monarch-hpc command finds and cancels it")
        raise error

    def _find_job(self, record: AllocationRecord) -> JobDetail | None:
        assert record.job_id is not None
        return self.slurm.find_job(record.job_id, record.job_name)

    def _await_number(self, record: AllocationRecord, deadline: Deadline) -> AllocationRecord:
        """Wait until the job of this record has an id, or the record is closed."""
        pause_s = 0.5
        while record.live and record.job_id is None:
            if deadline.passed():
                raise AllocationError(
                    record.name, f"is still being submitted by process {record.owner.pid} on {record.owner.host}"
                )
            census = self.reconcile()
            if census.problem is not None:
                raise census.problem
            jobs = (*census.records, *census.joined)
            record = next(found for found in jobs if found.allocation == record.allocation)
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 5.0)
        return record

    def _await_end(self, record: AllocationRecord, deadline: Deadline) -> None:
        """Wait until squeue no longer lists the job; a COMPLETING job still holds hosts."""
        pause_s = 0.2
        while rows := self.slurm.queue([record.job_name]):
            if deadline.passed():
                raise AllocationError(
                    record.name,
                    f"job {record.job_id} is still {rows[0].slurm_state} on {rows[0].hosts or 'no host'} after "
                    f"{deadline.timeout_s:.0f} s; it is marked for release, and 'monarch-hpc status' retries it",
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 5.0)
