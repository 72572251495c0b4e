"""Submitit's executor on a live allocation: ``submitit.AutoExecutor(folder, cluster="monarch_hpc")``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from submitit.core import core, utils

from monarch_hpc.core.arguments import check_number
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.machine.procfs import own_umask
from monarch_hpc.core.storage.files import own_folder, private_dir, write_private
from monarch_hpc.submitit.job import MonarchHpcJob
from monarch_hpc.submitit.pickles import write_pickle
from monarch_hpc.submitit.submission import Submission, write_submission
from monarch_hpc.submitit.tasks.environment import CLUSTER

if TYPE_CHECKING:
    from monarch_hpc.config.schema import Config

__all__ = ["MonarchHpcExecutor"]

_ANSWER_S = 60.0
"""Time for the answer of the service, which may still be starting."""

_TRIES = 5

_DEFAULTS: Mapping[str, object] = {
    "name": "submitit",
    "timeout_min": 5,
    "nodes": 1,
    "tasks_per_node": 1,
    "cpus_per_task": 1,
    "gpus_per_node": 0,
    "mem_gb": 0,
    "stderr_to_stdout": False,
    "array_parallelism": 256,
    "signal_delay_s": None,
}
"""The parameters with submitit's defaults; None for the one of the configuration."""


@dataclass(frozen=True, slots=True)
class _Found:
    """An allocation and its configuration."""

    name: str
    directory: Path
    config: Config


class MonarchHpcExecutor(core.Executor):
    """Runs jobs on an allocation that `monarch-hpc alloc` has made, without Slurm jobs of their own.

    Args:
        folder: for pickles, results and output; on a file system that the hosts share with this machine.
        max_num_timeout: how many times a job that has saved a checkpoint is started again after its time is over.
        max_pickle_size_gb: most size of the pickles of one submission, as submitit estimates it.
        allocation: the allocation's name; None for the program's own or, outside of one, ``default`` or the only one.
    """

    job_class = MonarchHpcJob

    def __init__(
        self,
        folder: str | Path,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        allocation: str | None = None,
    ) -> None:
        super().__init__(folder)
        self.max_num_timeout = max_num_timeout
        self.max_pickle_size_gb = max_pickle_size_gb
        self._allocation = allocation
        self._found: _Found | None = None

    @classmethod
    def name(cls) -> str:
        """The name for `AutoExecutor`."""
        return CLUSTER

    @classmethod
    def affinity(cls) -> int:
        """Available, but only where it is asked for: an allocation may be there for something else."""
        return 0

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        # None: `AutoExecutor` cannot pass on the parameters of an executor with an underscore in its name, and would
        # take those that are named here for a misspelt parameter of the others.
        return set()

    def _internal_update_parameters(self, **kwargs: object) -> None:
        """Set parameters: those of `AutoExecutor`, array_parallelism and signal_delay_s.

        Raises:
            TypeError: a value of another type.
            ValueError: there is no such parameter, or a value is out of range.
        """
        unknown = sorted(kwargs.keys() - _DEFAULTS.keys())
        if unknown:
            known = ", ".join(f"{name} ({value!r})" for name, value in sorted(_DEFAULTS.items()))
            raise ValueError(f"Unavailable parameter(s): {unknown}; valid ones, with their defaults: {known}")
        for name in ("nodes", "tasks_per_node", "cpus_per_task", "array_parallelism"):
            if name in kwargs:
                check_number(name, kwargs[name], least=1)
        if "gpus_per_node" in kwargs:
            check_number("gpus_per_node", kwargs["gpus_per_node"], least=0)
        for name in ("timeout_min", "mem_gb", "signal_delay_s"):
            value = kwargs.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name} is {value!r}; it is a number")
            if not 0 <= value < float("inf") or (name == "timeout_min" and not value):
                raise ValueError(f"{name} is {value}; it is a positive number")
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        found = self._found = _find_allocation(self._allocation, self._found)
        submission = self._plan(found, len(delayed_submissions))
        tasks = range(submission.num_hosts * submission.tasks_per_host)
        own_folder(submission.place)
        jobs = [MonarchHpcJob[Any](self.folder, submission.job_id(index), tasks) for index in submission.indices]
        for number, (job, delayed) in enumerate(zip(jobs, delayed_submissions, strict=True)):
            path = job.paths.submitted_pickle
            own_folder(path.parent)
            # submitit compares with it: whole minutes there, but any number does.
            delayed.set_timeout(submission.timeout_s / 60, self.max_num_timeout)  # type: ignore[arg-type]
            write_pickle(delayed, path)
            if not number:
                self._check_size(path, len(delayed_submissions))
        _submit(submission)
        return [*jobs]

    def _check_size(self, path: Path, num_pickles: int) -> None:
        size_gb = path.stat().st_size / 1024**3
        if num_pickles * size_gb > self.max_pickle_size_gb:
            path.unlink()
            raise RuntimeError(
                f"Submitting an estimated {num_pickles} x {size_gb:.2f} > {self.max_pickle_size_gb} GB of functions "
                "and arguments as pickles; if that is meant, set executor.max_pickle_size_gb"
            )

    def _plan(self, found: _Found, num_jobs: int) -> Submission:
        config, directory = found.config, found.directory
        chosen: dict[str, Any] = {**_DEFAULTS, **self.parameters}
        timeout_s = 60.0 * chosen["timeout_min"]
        notice_s = config.submitit.notice_s if chosen["signal_delay_s"] is None else float(chosen["signal_delay_s"])
        return Submission(
            id=f"m{os.urandom(6).hex()}",
            folder=str(self.folder),
            num_jobs=num_jobs if num_jobs > 1 else 0,
            num_hosts=chosen["nodes"],
            tasks_per_host=chosen["tasks_per_node"],
            cpus_per_task=chosen["cpus_per_task"],
            gpus_per_host=chosen["gpus_per_node"],
            memory_bytes=int(chosen["mem_gb"] * 1024**3),
            parallelism=chosen["array_parallelism"],
            timeout_s=timeout_s,
            notice_s=min(notice_s, timeout_s / 2),
            merged=chosen["stderr_to_stdout"],
            argv=(config.agent.python or sys.executable, "-P"),
            cwd=os.getcwd(),
            umask=own_umask(),
            environment=str(_write_environment(directory)),
            allocation=found.name,
            directory=str(directory),
            run="",
        )


def _find_allocation(name: str | None, last: _Found | None) -> _Found:
    """Return the allocation called *name*; the *last* one found while it lasts.

    Raises:
        AllocationError: there is none, there are several, or it has ended.
    """
    from monarch_hpc.allocation.ready import check_allocation
    from monarch_hpc.allocation.settings import name_of, read_config
    from monarch_hpc.config.program import read_program
    from monarch_hpc.mesh.program.allocations.opening import find_only, open_named

    if last is not None:
        with contextlib.suppress(AllocationError):
            check_allocation(last.directory)
            return last
    directory = read_program().directory
    if name is not None or directory is None:
        directory, name = open_named(name or find_only())
    return _Found(name or name_of(directory), directory, read_config(directory))


def _write_environment(directory: Path) -> Path:
    """Write this process's variables for its jobs, where only its user can read them; return the file."""
    from monarch_hpc.attach.program_order import travelling
    from monarch_hpc.config.program import own_environment

    data = json.dumps(travelling(own_environment()), indent=1, sort_keys=True).encode()
    path = private_dir(directory / "submitit") / f"{hashlib.sha256(data).hexdigest()[:16]}.json"
    if not path.exists():
        write_private(path, data)
    return path


def _submit(submission: Submission) -> None:
    """Hand a submission to the service of its allocation.

    Raises:
        FailedSubmissionError: it was refused.
        MonarchError: the allocation cannot be used.
    """
    from monarch_hpc.submitit.link import ServiceEnded, open_service
    from monarch_hpc.submitit.requests import ServiceRequest

    directory = Path(submission.directory)
    for _ in range(_TRIES):
        link = open_service(directory)
        path = write_submission(replace(submission, run=link.run))
        try:
            problem = link.ask(ServiceRequest(os.urandom(8).hex(), "submit", submission.id, str(path)), _ANSWER_S)
        except ServiceEnded:
            continue  # it had nothing to do, or its head is lost for the moment; it had not started anything
        except TimeoutError as error:
            raise utils.FailedSubmissionError(str(error)) from error
        if problem:
            raise utils.FailedSubmissionError(problem)
        return
    raise AllocationError(
        submission.allocation, "its service of submitit's jobs ends again and again: 'monarch-hpc logs'"
    )
