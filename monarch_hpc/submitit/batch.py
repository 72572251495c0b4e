"""Functions as batch jobs: each controls an allocation of its own, with submitit's results and requeues."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from submitit.core import core, utils

from monarch_hpc.config.load import load
from monarch_hpc.core.arguments import check_number, check_path, check_text, check_texts
from monarch_hpc.core.errors import SlurmBusy, SlurmCommandError
from monarch_hpc.core.storage.files import own_folder
from monarch_hpc.slurm.batch import BatchRequest, batch_client, plan_batch_flags, render_function, submit_batch
from monarch_hpc.slurm.checks.plan import plan_job
from monarch_hpc.slurm.commands.jobs import JobDetail
from monarch_hpc.slurm.commands.states import Phase
from monarch_hpc.submitit.pickles import write_pickle
from monarch_hpc.submitit.scheduler import NOTICE

__all__ = ["BatchJob", "batch"]

R = TypeVar("R", covariant=True)

_GONE = "UNKNOWN"
_FORGOTTEN = "FORGOTTEN"
"""The state of a job that slurmctld no longer has: it forgets jobs some minutes after their end, and only those."""

_SIGNAL = f"B:{NOTICE.name.removeprefix('SIG')}@"

_ASK_S = 60
"""Longest time between two questions about a job; the first ones come sooner."""


class _Watcher(core.InfoWatcher):
    """States of batch jobs, from slurmctld. Without a database, sacct has none."""

    def __init__(self) -> None:
        super().__init__(delay_s=_ASK_S)
        self._details: dict[str, JobDetail | None] = {}

    def clear(self) -> None:
        """Ask again."""
        super().clear()
        self._details = {}

    def update(self) -> None:
        """Ask about the jobs that have not ended, one by one: squeue leaves out those that have."""
        slurm = batch_client(load().config, os.environ)
        for job_id in self._registered - self._finished:
            try:
                self._details[job_id] = slurm.find_job(int(job_id))
            except (SlurmBusy, SlurmCommandError):
                continue  # it is asked again
            if self.is_done(job_id, "cache"):
                self._finished.add(job_id)
        self._last_status_check = time.time()

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """The state of a job, with Slurm's names."""
        if job_id not in self._registered:
            self.register_job(job_id)
        self.update_if_long_enough(mode)
        if job_id not in self._details:
            return {"JobID": job_id, "State": _GONE}
        detail = self._details[job_id]
        if detail is None:
            return {"JobID": job_id, "State": _FORGOTTEN}
        return {
            "JobID": job_id,
            "State": detail.slurm_state,
            "NodeList": detail.hosts,
            "Reason": detail.reason,
            "ExitCode": detail.exit_code,
        }

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """The state of a job, as Slurm prints it; ``FORGOTTEN`` if slurmctld no longer has it."""
        return self.get_info(job_id, mode)["State"]

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether a job has ended."""
        self.get_info(job_id, mode)
        if job_id not in self._details:
            return False
        detail = self._details[job_id]
        return detail is None or detail.state.phase is Phase.ENDED


class BatchJob(core.Job[R]):
    """The handle of a function that `batch` has submitted; any process that sees the folder can have one.

    Args:
        folder: the folder of `batch`.
        job_id: Slurm's number of the job.
        tasks: the rank of its only task.
    """

    watcher = _Watcher()

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)

    def cancel(self, check: bool = True) -> None:
        """End the job.

        Args:
            check: whether errors are raised.

        Raises:
            SlurmCommandError: Slurm refuses.
        """
        try:
            batch_client(load().config, os.environ).cancel(int(self.job_id))
        except SlurmCommandError:
            if check:
                raise

    def _interrupt(self, timeout: bool = False) -> None:
        """Send the function the signal that it gets before its time limit, for tests of checkpoints."""
        batch_client(load().config, os.environ).signal_batch(int(self.job_id), NOTICE)


def batch(
    fn: Callable[..., R],
    *args: object,
    nodes: int = 1,
    timeout_min: int | None = None,
    gpus_per_node: int | str | None = None,
    name: str | None = None,
    folder: str | os.PathLike[str] = "monarch_hpc_jobs",
    max_num_timeout: int = 3,
    options: Sequence[str] = (),
) -> BatchJob[R]:
    """Submit ``fn(*args)`` as a Slurm job, in which `monarch_hpc.hosts` are the hosts of the job.

    The function runs once, on the job's first host. If it has a method ``checkpoint``, as for submitit, that is called
    with the same arguments `slurm.notice_s` before the time limit, when the job is preempted at a site that sends the
    signal, and by ``job._interrupt()``; it returns a `submitit.helpers.DelayedSubmission`, with which Slurm starts the
    same job again.

    Args:
        fn: a function, or any other callable object; pickled by value if it is part of the program itself.
        *args: its arguments; for keyword arguments see `functools.partial`.
        nodes: number of hosts.
        timeout_min: time limit; None for config key `slurm.time_min`.
        gpus_per_node: GPUs on each host, such as 4 or ``"a100:4"``.
        name: the job's name; None for the function's.
        folder: for the pickle, the result and the output; on a file system that the hosts share with this machine.
        max_num_timeout: how many times the function may start again after its time limit.
        options: other options of sbatch, such as ``["--qos=debug"]``; later ones win.

    Returns:
        Submitit's handle: ``result()``, ``exception()``, ``done()``, ``stdout()``, ``cancel()``, ...

    Raises:
        ConfigError: other users may write the folder; the site's rules refuse the job; or it has a checkpoint, and may
            not start itself again.
        SlurmCommandError: Slurm refuses it.
        SlurmMissing: there is no sbatch here.
        TypeError: an argument of another type, or *fn* is not callable.
        ValueError: a number is out of range.
    """
    if not callable(fn):
        raise TypeError(f"fn is {fn!r:.80}; give the function itself, and its arguments after it")
    check_number("nodes", nodes, least=1)
    config = load().config
    slurm = batch_client(config, os.environ)
    place = Path(check_path("folder", folder)).expanduser().absolute()
    if set("%\\") & set(str(place)):
        raise ValueError(f"folder is {str(place)!r}; Slurm gives a percent sign or a backslash in it another meaning")
    request = BatchRequest(
        program=(),
        name=str(getattr(fn, "__name__", type(fn).__name__)) if name is None else check_text("name", name, filled=True),
        folder=Path.cwd(),
        num_hosts=str(nodes),
        gpus_per_node=None if gpus_per_node is None else str(gpus_per_node),
        requeues=max(1, check_number("max_num_timeout", max_num_timeout, least=0)) if _has_checkpoint(fn) else 0,
        options=(
            *([] if timeout_min is None else [f"--time={check_number('timeout_min', timeout_min, least=1)}"]),
            f"--output={place}/%j_0_log.out",
            f"--error={place}/%j_0_log.err",
            *check_texts("options", options, "['--qos=debug']"),
        ),
    )
    flags = plan_batch_flags(config, request)
    plan = plan_job(config, flags, slurm)
    if flags.get("array"):
        raise ValueError("an array has several results; call batch once for each")
    request = replace(request, options=(*request.options, *plan.options))
    limit = str(plan_batch_flags(config, request).get("time"))
    limit_min = int(limit) if limit.isdecimal() else config.slurm.time_min
    if flags.get("signal") == f"{_SIGNAL}{config.slurm.notice_s:.0f}":
        # Not earlier than after half of the time: Slurm sends a signal that is late already with the job's start.
        notice_s = min(config.slurm.notice_s, 30 * limit_min)
        request = replace(request, options=(*request.options, f"--signal={_SIGNAL}{notice_s:.0f}"))
    delayed = utils.DelayedSubmission(fn, *args)
    # Submitit takes a signal later than that for one at the time limit.
    delayed.set_timeout(limit_min, max_num_timeout)
    own_folder(place)
    pickled = place / f"{uuid.uuid4().hex}.pkl"
    write_pickle(delayed, pickled)
    try:
        job_id = submit_batch(config, request, slurm, render_function(config, request, place))
    except BaseException:
        pickled.unlink()
        raise
    job = BatchJob[R](place, str(job_id))
    job.paths.move_temporary_file(pickled, "submitted_pickle")
    return job


def _has_checkpoint(fn: object) -> bool:
    return hasattr(fn, "checkpoint") or hasattr(fn, "__submitit_checkpoint__")
