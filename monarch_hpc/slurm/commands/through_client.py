"""Slurm's commands on a host that may not submit jobs: a client of the allocation, on a login node, submits them."""

from __future__ import annotations

import base64
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.config import Config
from monarch_hpc.config.program import read_program
from monarch_hpc.core.errors import SlurmBusy, SlurmCommandError, SlurmMissing
from monarch_hpc.slurm.commands.argv import is_of_machine, submit_argv
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.commands.jobs import parse_job_id
from monarch_hpc.wire.control.programs import UNKNOWN, JobSubmitted, SubmitJob

__all__ = ["ThroughClient", "open_slurm", "submit_for"]

_HOP_S = 10.0
"""Beyond sbatch's own time: to start a process that asks the head, and for its connection."""


class ThroughClient(SlurmClient):
    """As `SlurmClient`, but a client of the allocation submits jobs.

    Args:
        refusal: why jobs cannot be submitted on this host.
        directory: of the allocation that this process runs on; None if it runs on none.
    """

    def __init__(self, environ: Mapping[str, str], timeout_s: float, refusal: str, directory: Path | None) -> None:
        super().__init__(environ, timeout_s)
        self._refusal = refusal
        self._directory = directory

    def why_no_jobs(self) -> str:
        """Return why no jobs can be submitted: the site's rule, unless a client is attached now."""
        if self._directory is None:
            return self._refusal
        try:
            self._pass_on(self._directory, None)
        except SlurmCommandError as error:
            return f"{self._refusal}; or show this run there ('monarch-hpc attach RUN'): {error.stderr.strip()}"
        return ""

    def submit(self, script: Path, flags: Mapping[str, str]) -> int:
        """As `SlurmClient.submit`."""
        if self._directory is None:
            raise SlurmCommandError(submit_argv(script), 1, self._refusal)
        try:
            return parse_job_id(self._pass_on(self._directory, script))
        except SlurmCommandError as error:
            if isinstance(error, SlurmBusy) or error.status == UNKNOWN:
                raise SlurmBusy(submit_argv(script), error.status, error.stderr) from error
            raise self.refusal(submit_argv(script), error.status, error.stderr, flags) from error

    def _pass_on(self, directory: Path, script: Path | None) -> str:
        argv = [sys.executable, "-P", "-m", "monarch_hpc.attach.submission", str(directory)]
        return self._run(argv if script is None else [*argv, str(script)], self._timeout_s + _HOP_S)


def open_slurm(config: Config, environ: Mapping[str, str], patience_s: float = math.inf) -> SlurmClient:
    """Return Slurm's commands as this machine may use them.

    Args:
        environ: the environment of this process; slurmd names its node there.
        patience_s: upper bound on the configured timeout of the commands, in seconds.
    """
    timeout_s = min(patience_s, config.slurm.command_timeout_s)
    node = environ.get("SLURMD_NODENAME", "")
    if not node or config.login.submit_from_compute:
        return SlurmClient(environ, timeout_s)
    refusal = (
        f"this program is on compute node {node}, from which {config.site} takes no jobs: take the allocation on a "
        "login node ('monarch-hpc alloc NAME'), and use it here by monarch_hpc.attach(NAME); or start the program "
        "there ('monarch-hpc run --on here')"
    )
    return ThroughClient(environ, timeout_s, refusal, read_program().directory)


def submit_for(message: SubmitJob, timeout_s: float) -> JobSubmitted:
    """Submit a job on this machine for a process on another one.

    The job gets that process's variables, but those that say how to reach Slurm are this machine's.
    """
    slurm = SlurmClient(os.environ, timeout_s)
    variables = {name: value for name, value in message.environment.items() if not is_of_machine(name)}
    try:
        with tempfile.NamedTemporaryFile(prefix="monarch-hpc-", suffix=".sbatch") as file:
            file.write(base64.b64decode(message.script, validate=True))
            file.flush()
            output = slurm.submit_text(Path(file.name), Path(message.folder), variables)
    except SlurmBusy as error:
        return JobSubmitted(message.ticket, UNKNOWN, "", error.stderr)
    except SlurmCommandError as error:
        return JobSubmitted(message.ticket, error.status, "", error.stderr)
    except (SlurmMissing, OSError, ValueError, subprocess.SubprocessError) as error:
        return JobSubmitted(message.ticket, 1, "", f"it cannot be submitted on {os.uname().nodename}: {error}")
    return JobSubmitted(message.ticket, 0, output, "")
