"""An agent's report of its host, and the head's report to the login side that it no longer waits for agents."""

from __future__ import annotations

import os

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.allocation.ready import make_ready, write_ready
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.version import PYTHON_VERSION, __version__
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["make_entry", "report_ready"]

_log = Logger(__name__)


def make_entry(args: AgentArgs, grant: Grant, addresses: list[str], incarnation: int) -> HostEntry:
    """Return an agent's report of its host; it listens at *addresses*."""
    return HostEntry(
        rank=args.rank,
        name=args.name,
        addresses=addresses,
        pid=os.getpid(),
        python=PYTHON_VERSION,
        package=__version__,
        cpus=grant.cpus,
        gpus=grant.gpus,
        memory_bytes=grant.memory_bytes,
        interfaces=grant.interfaces,
        group=args.group,
        component=args.component,
        incarnation=f"{incarnation:x}",
        job_id=args.slurm_job_id or 0,
        first_rank=args.first_rank,
    )


def report_ready(args: AgentArgs, term: int, hosts: list[HostEntry], missing: dict[int, str]) -> None:
    """Write ``ready.json`` as the head of *term*; *missing* has the reason for each rank whose agent has not joined."""
    names = [_name(args, rank) for rank in missing]
    for rank, why in missing.items():
        _log.warning("%s is missing: %s", _name(args, rank), why)
    ready = make_ready(args.allocation, args.job_id, hosts, names, args.rank, term)
    try:
        write_ready(args.folder, ready)
        if args.ready_fd >= 0:
            os.write(args.ready_fd, b"\n")
    except OSError as error:
        _log.error("cannot report in %s that the hosts are ready: %s", args.folder, error)


def _name(args: AgentArgs, rank: int) -> str:
    return (args.host_names[rank] if rank < len(args.host_names) else "") or f"host {rank}"
