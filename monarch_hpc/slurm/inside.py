"""An allocation within a job that somebody else submitted: the same batch script, run as a process of ours.

So a program finds agents on all hosts of an sbatch script that knows nothing of us; they end with the program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import AgentsMissing, AllocationError
from monarch_hpc.core.files import private_dir
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.slurm.client import SlurmClient
from monarch_hpc.slurm.directory import Ready, last_words, look, prepare, tail
from monarch_hpc.slurm.script import Request, render_script

__all__ = ["JobHere", "find_job_here", "open_inside"]

_LOOK_S = 0.05
# srun gives its tasks the site's KillWait, 30 s by default, to end after SIGTERM.
_STEP_END_S = 40.0


@dataclass(frozen=True, slots=True)
class JobHere:
    """The Slurm job that this process runs in.

    Args:
        job_id: Slurm's number.
        nodelist: its hosts, as Slurm writes them.
        num_hosts: how many they are.
    """

    job_id: int
    nodelist: str
    num_hosts: int


def find_job_here(environ: Mapping[str, str]) -> JobHere | None:
    """Return the job that a process with this environment runs in; None outside of any."""
    try:
        num_hosts = environ.get("SLURM_JOB_NUM_NODES") or environ["SLURM_NNODES"]
        return JobHere(int(environ["SLURM_JOB_ID"]), environ["SLURM_JOB_NODELIST"], int(num_hosts))
    except (KeyError, ValueError):
        return None


@contextlib.contextmanager
def open_inside(
    config: Config, environ: Mapping[str, str], shut_down: Callable[[Path], object], stop: Callable[[], bool]
) -> Iterator[Path]:
    """Start agents on all hosts of the job that we are in, and end them at the end.

    Args:
        config: the configuration.
        environ: the environment of this process, with the job's variables.
        shut_down: asks the head in this directory to end all of ours on all hosts.
        stop: asked while agents are awaited; True gives up.

    Yields:
        The allocation's directory, its agents ready.

    Raises:
        AgentsMissing: agents did not report in time.
        AllocationError: the agents' step ended, or *stop* said so.
    """
    here = find_job_here(environ)
    assert here is not None
    allocation = new_allocation_id()
    name = f"job-{here.job_id}"
    directory = private_dir(config.paths.shared) / allocation[:8]
    script = render_script(config, Request(allocation, name, directory, str(here.num_hosts)))
    path = prepare(directory, config, os.urandom(32), script)
    step = SlurmClient(environ, config.slurm.command_timeout_s).start_script(path, directory / "slurm.out")
    try:
        _await_ready(directory, name, config.slurm.bootstrap_s, step, stop)
        yield directory
    finally:
        try:
            if look(directory).ready is not None and step.poll() is None:
                shut_down(directory)
        finally:
            _end(step)
            (directory / "key").unlink(missing_ok=True)


def _await_ready(
    directory: Path, name: str, bootstrap_s: float, step: subprocess.Popen[bytes], stop: Callable[[], bool]
) -> Ready:
    deadline = Deadline(bootstrap_s)
    while True:
        late = deadline.passed()
        seen = look(directory)
        if seen.ready is not None and not seen.ready.missing:
            return seen.ready
        if stop():
            raise AllocationError(name, "interrupted before its agents were ready")
        if step.poll() is not None:
            lines = "".join(f"\n    {line}" for line in tail(directory / "slurm.out", 5))
            raise AllocationError(
                name, f"the agents' step ended with exit status {step.returncode}; last lines of its output:{lines}"
            )
        if seen.ready is not None or late:
            hosts = seen.granted.hosts if seen.granted is not None else ()
            missing = [host for rank, host in enumerate(hosts) if rank not in seen.reported] or list(hosts[:1])
            words = last_words(directory, hosts)
            raise AgentsMissing(name, bootstrap_s, {host: words[host] for host in missing})
        time.sleep(_LOOK_S)


def _end(step: subprocess.Popen[bytes]) -> None:
    """Wait for the step, which ends with its agents; help where it does not."""
    # The first wait is for agents that were told to end; then their srun is.
    for number, wait_s in ((None, 5.0), (signal.SIGTERM, _STEP_END_S), (signal.SIGKILL, 5.0)):
        if number is not None and step.poll() is None:
            os.killpg(step.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            step.wait(wait_s)
            return
