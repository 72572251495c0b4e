"""Opens an allocation within a job submitted by other means: runs the same batch script as a child process.

So a program in an ordinary sbatch script gets agents on all hosts of its job. They end with the program, however it
ends, and the allocation's directory is removed. A killed program's directory is removed by a later program, once the
job has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from monarch_hpc.allocation.ready import Ready
from monarch_hpc.config import Config
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AgentsMissing, AllocationError, ConfigError, SlurmError
from monarch_hpc.core.ids import new_allocation_id
from monarch_hpc.core.storage.files import private_dir, read_json, write_json
from monarch_hpc.core.text.hostlist import expand
from monarch_hpc.slurm.commands.client import SlurmClient
from monarch_hpc.slurm.directory import last_lines, look, prepare, tail
from monarch_hpc.slurm.record import OwnerProcess, current_owner, owner_lives
from monarch_hpc.slurm.script import Request, render_script

__all__ = ["JobHere", "find_job_here", "open_inside"]

_LOOK_S = 0.05
# srun gives its tasks the site's KillWait, 30 s by default, to end after SIGTERM.
_STEP_END_S = 40.0
# Agents that have reported a clean shutdown, and srun, exit within this time.
_LEAVE_S = 5.0
_TENANT = "tenant.json"
# Variables in which launchers pass the number of processes that they started.
_SIZE_VARIABLES = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun",
    "PMI_SIZE": "mpiexec",
}


@dataclass(frozen=True, slots=True)
class JobHere:
    """The Slurm job that this process runs in.

    Args:
        job_id: Slurm's number.
        nodelist: its hosts, in Slurm's notation.
        num_hosts: number of its hosts.
        cluster: Slurm's name of the cluster, within which job ids are unique; empty if unknown.
    """

    job_id: int
    nodelist: str
    num_hosts: int
    cluster: str = ""


def find_job_here(environ: Mapping[str, str]) -> JobHere | None:
    """Return the job that a process with this environment runs in; None outside of a job."""
    try:
        size = int(environ.get("SLURM_HET_SIZE", "1"))
        if size > 1:
            nodelist = ",".join(environ[f"SLURM_JOB_NODELIST_HET_GROUP_{component}"] for component in range(size))
            num_hosts = len(expand(nodelist))
        else:
            nodelist = environ["SLURM_JOB_NODELIST"]
            num_hosts = int(environ.get("SLURM_JOB_NUM_NODES") or environ["SLURM_NNODES"])
        return JobHere(int(environ["SLURM_JOB_ID"]), nodelist, num_hosts, environ.get("SLURM_CLUSTER_NAME", ""))
    except (ConfigError, KeyError, ValueError):
        return None


@contextlib.contextmanager
def open_inside(config: Config, environ: Mapping[str, str], shut_down: Callable[[Path], object]) -> Iterator[Path]:
    """Start agents on all hosts of the job that this process runs in; they end with the context or this process.

    Args:
        config: the configuration.
        environ: the environment of this process, with the job's variables.
        shut_down: asks the head in this directory to end our processes on all hosts.

    Yields:
        The allocation's directory, once its agents are ready.

    Raises:
        AgentsMissing: agents did not report in time.
        AllocationError: the agents' step ended; srun is not on PATH; or this is one of many processes of a launcher,
            each of which would start agents on all hosts.
    """
    here = find_job_here(environ)
    assert here is not None
    name = f"job-{here.job_id}"
    _refuse_many(environ, here, name)
    slurm = SlurmClient(environ, config.slurm.command_timeout_s)
    if not slurm.has("srun"):
        raise AllocationError(
            name,
            f"no agent can be started on its {here.num_hosts} host(s) {here.nodelist}: srun is not on PATH here (a "
            "container?); bring Slurm's commands in, or use this host alone: monarch-hpc run --local 1 SCRIPT",
        )
    allocation = new_allocation_id()
    shared = private_dir(config.paths.shared)
    directory = private_dir(shared / allocation[:8])
    step: subprocess.Popen[bytes] | None = None
    try:
        write_json(directory / _TENANT, _tenant_document(here))
        script = render_script(config, Request(allocation, name, directory, str(here.num_hosts)))
        # The hosts are the user's job's, which its own script ends: a program may leave them unused for any time.
        kept = replace(config, slurm=replace(config.slurm, idle_min=0.0, allocate_by="sbatch"))
        path = prepare(directory, kept, os.urandom(32), script)
        step = slurm.start_script(path, directory / "slurm.out")
        _sweep(shared, slurm, here)  # while the agents start
        _await_ready(directory, name, config.slurm.bootstrap_s, step)
        yield directory
    finally:
        try:
            if step is not None:
                _close(directory, step, shut_down, config.agent.hook_s if config.agent.epilogue else 0.0)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _refuse_many(environ: Mapping[str, str], here: JobHere, name: str) -> None:
    for variable, launcher in _SIZE_VARIABLES.items():
        size = environ.get(variable, "1")
        if size.isdecimal() and int(size) > 1:
            raise AllocationError(
                name,
                f"this is one of {size} processes that {launcher} started ({variable}={size}), and each would start "
                f"agents on all {here.num_hosts} hosts; start the program once, in the batch script itself or with "
                "'srun --nodes=1 --ntasks=1'; to give each an embedded host of its own, start each with "
                "'monarch-hpc run --local 1 SCRIPT'",
            )


def _tenant_document(here: JobHere) -> dict[str, object]:
    return {"schema": 1, "owner": asdict(current_owner()), **asdict(here)}


def _sweep(shared: Path, slurm: SlurmClient, here: JobHere) -> None:
    """Remove the directories of killed programs whose jobs have ended.

    Only Slurm knows whether a job has ended, and only for its own cluster; several clusters may share this file system.
    """
    with contextlib.suppress(SlurmError, OSError):
        for path in sorted(shared.glob(f"*/{_TENANT}")):
            tenant, owner = _read_tenant(path)
            if tenant is None or owner is None or not here.cluster or tenant.cluster != here.cluster:
                continue
            if tenant.job_id == here.job_id or owner_lives(owner):
                continue
            detail = slurm.find_job(tenant.job_id)
            if detail is None or not detail.state.phase.alive:
                shutil.rmtree(path.parent, ignore_errors=True)


def _read_tenant(path: Path) -> tuple[JobHere | None, OwnerProcess | None]:
    """Return the job and owner of a directory; (None, None) if the file is foreign or of another version."""
    try:
        document = read_json(path)
        if not isinstance(document, dict) or document.pop("schema", None) != 1:
            return None, None
        owner = OwnerProcess(**document.pop("owner"))
        return JobHere(**document), owner
    except (ConfigError, OSError, TypeError, KeyError):
        return None, None


def _await_ready(directory: Path, name: str, bootstrap_s: float, step: subprocess.Popen[bytes]) -> Ready:
    deadline = Deadline(bootstrap_s)
    while True:
        late = deadline.passed()
        seen = look(directory)
        if seen.ready is not None and not seen.ready.missing:
            return seen.ready
        if step.poll() is not None:
            lines = "".join(f"\n    {line}" for line in tail(directory / "slurm.out", 5))
            raise AllocationError(
                name, f"the agents' step ended with exit status {step.returncode}; last lines of its output:{lines}"
            )
        if seen.ready is not None or late:
            hosts = seen.granted.hosts if seen.granted is not None else ()
            missing = [host for rank, host in enumerate(hosts) if rank not in seen.reported] or list(hosts[:1])
            written = last_lines(directory, hosts)
            raise AgentsMissing(name, bootstrap_s, {host: written[host] for host in missing})
        time.sleep(_LOOK_S)


def _close(directory: Path, step: subprocess.Popen[bytes], shut_down: Callable[[Path], object], hook_s: float) -> None:
    """End the agents and wait for their step to end; kill it if it does not end in time.

    Args:
        hook_s: time that the script's epilogue may take after that.
    """
    assert step.stdin is not None
    try:
        if look(directory).ready is not None and step.poll() is None:
            shut_down(directory)
            with contextlib.suppress(subprocess.TimeoutExpired):
                step.wait(_LEAVE_S + hook_s)
    finally:
        step.stdin.close()  # the script's lifeline: it ends srun
        try:
            step.wait(_STEP_END_S + hook_s)
        except subprocess.TimeoutExpired:
            os.killpg(step.pid, signal.SIGKILL)
            step.wait()
