"""The variables of a task, and submitit's view of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from submitit.core.job_environment import JobEnvironment

from monarch_hpc.submitit.submission import Submission

__all__ = ["CLUSTER", "MonarchHpcJobEnvironment", "plan_environment", "requeue_path"]

CLUSTER = "monarch_hpc"
"""The name of the executor, as in ``AutoExecutor(cluster="monarch_hpc")``."""

_PREFIX = "SUBMITIT_MONARCH_HPC"
_HOSTS = f"{_PREFIX}_HOSTS"


class MonarchHpcJobEnvironment(JobEnvironment):
    """The place of the running code in its job; in use only in tasks of this executor."""

    _env: ClassVar = {
        "job_id": f"{_PREFIX}_JOB_ID",
        "num_tasks": f"{_PREFIX}_NUM_TASKS",
        "num_nodes": f"{_PREFIX}_NUM_HOSTS",
        "node": f"{_PREFIX}_HOST",
        "global_rank": f"{_PREFIX}_RANK",
        "local_rank": f"{_PREFIX}_LOCAL_RANK",
        "array_job_id": f"{_PREFIX}_ARRAY_ID",
        "array_task_id": f"{_PREFIX}_ARRAY_INDEX",
    }

    @classmethod
    def name(cls) -> str:
        """The name of the executor."""
        return CLUSTER

    @property
    def hostnames(self) -> Sequence[str]:
        """Names of the job's hosts, in the order of ranks."""
        return os.environ[_HOSTS].split(",")

    def _requeue(self, countdown: int) -> None:
        # The service looks for it when this task has ended, which submitit sees to.
        requeue_path(self.paths.folder, self.job_id).touch()


def requeue_path(folder: Path, job_id: str) -> Path:
    """The file by which a task asks to be started again after its end."""
    return folder / f"{job_id}_requeue"


def plan_environment(
    submission: Submission, index: int, rank: int, hosts: Sequence[str], gpus: Sequence[str], gpu_variable: str
) -> Mapping[str, str]:
    """Return the variables of a task.

    Args:
        rank: the task's rank in its job.
        hosts: names of the job's hosts.
        gpus: the GPUs that the job has on the task's host.
        gpu_variable: the variable that limits a process to them.
    """
    num_tasks = submission.num_hosts * submission.tasks_per_host
    host, local_rank = divmod(rank, submission.tasks_per_host)
    values = {
        "job_id": submission.job_id(index),
        "num_tasks": str(num_tasks),
        "num_nodes": str(submission.num_hosts),
        "node": str(host),
        "global_rank": str(rank),
        "local_rank": str(local_rank),
    }
    if submission.num_jobs:
        values |= {"array_job_id": submission.id, "array_task_id": str(index)}
    names = MonarchHpcJobEnvironment._env
    return {
        "SUBMITIT_EXECUTOR": CLUSTER,
        _HOSTS: ",".join(hosts),
        gpu_variable: ",".join(gpus),
        **{names[name]: value for name, value in values.items()},
    }
