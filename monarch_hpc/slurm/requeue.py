"""Starts the job that this process runs in again: by Slurm's requeue or, where that is refused, as a next job."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.config.load import load
from monarch_hpc.config.program import LOOP_VARIABLE, without_program
from monarch_hpc.config.schema import Config, LimitsConfig
from monarch_hpc.core.errors import AllocationError, ConfigError, SlurmBusy, SlurmCommandError
from monarch_hpc.slurm.commands.argv import own_job_id
from monarch_hpc.slurm.commands.client import SlurmClient

__all__ = ["check_chaining", "num_starts_before", "requeue"]

_CHAINED_VARIABLE = "MONARCH_HPC_CHAINED"
"""Environment variable of a next job: how many times its predecessors have started."""


def requeue() -> int:
    """Start the Slurm job that this program runs in again, and end the present one.

    The job goes back to the queue (``scontrol requeue``). Where Slurm refuses that, as for jobs with ``--no-requeue``,
    the same script is submitted as a next job, which starts when this one has ended.

    Slurm sends SIGTERM to this program at once, often before the call returns: what must be done first belongs before
    the call, or into a hook of `on_deadline`, for which the program's end waits.

    Returns:
        The number of the job that runs next, if the program has not ended by then.

    Raises:
        AllocationError: this program is not in a Slurm job, or has started as many times as ``--max-requeues`` allows.
        ConfigError: the site forbids it in this queue (key ``limits.no_chaining``).
        SlurmCommandError: Slurm refused both.
    """
    return requeue_job(load().config, os.environ)


def requeue_job(config: Config, environ: Mapping[str, str]) -> int:
    """Do what `requeue` does, for a process with this environment."""
    try:
        job_id = int(environ["SLURM_JOB_ID"])
    except (KeyError, ValueError):
        raise AllocationError(
            "this program",
            "is not in a Slurm job, and cannot be started again by Slurm; submit it with 'monarch-hpc sbatch SCRIPT'",
        ) from None
    name = f"job {job_id}"
    partition, qos = environ.get("SLURM_JOB_PARTITION", ""), environ.get("SLURM_JOB_QOS", "")
    check_chaining(config.limits, partition, qos, name)
    limit, num_before = environ.get(LOOP_VARIABLE, ""), num_starts_before(environ)
    if limit.isdecimal() and 0 < int(limit) <= num_before:
        raise AllocationError(name, f"has started again {num_before} times, as often as --max-requeues allows")
    slurm = SlurmClient(without_program(environ), config.slurm.command_timeout_s)
    own = own_job_id(environ)
    try:
        slurm.requeue(own)
    except SlurmBusy:
        raise
    except SlurmCommandError:
        return _submit_next(slurm, own, num_before + 1)
    return job_id


def check_chaining(limits: LimitsConfig, partition: str, qos: str, what: str) -> None:
    """Refuse jobs that start again where the site forbids them.

    Raises:
        ConfigError: it does, in this partition or QOS.
    """
    for queue in (partition, qos):
        if queue in limits.no_chaining:
            problem = f"{what} may not start itself again in '{queue}', by the rules of the site; choose another queue"
            raise ConfigError("limits.no_chaining", queue, "site profile", problem)


def num_starts_before(environ: Mapping[str, str]) -> int:
    """The number of earlier starts of the job that a process with this environment runs in, and of its predecessors."""
    counts = (environ.get(name, "0") for name in ("SLURM_RESTART_COUNT", _CHAINED_VARIABLE))
    return sum(int(count) for count in counts if count.isdecimal())


def _submit_next(slurm: SlurmClient, job_id: str, num_starts: int) -> int:
    # Slurm keeps each job's script; the file that was submitted may have changed or gone.
    with tempfile.TemporaryDirectory(prefix="monarch-hpc-") as folder:
        script = Path(folder, "next.sbatch")
        slurm.write_script(job_id, script)
        successor = slurm.submit_next(script, job_id, {_CHAINED_VARIABLE: str(num_starts)})
    slurm.cancel(job_id)
    return successor
