"""The arguments of an agent, from its command line and its host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass

__all__ = ["AgentArgs"]


@dataclass(frozen=True, slots=True)
class AgentArgs:
    """The allocation, rank and environment of one agent.

    Args:
        folder: where agents and head exchange files: *directory*, or its subfolder for this attempt of the job.
        host_names: names of hosts by rank; empty where Slurm does not provide them, and for those of other jobs.
        environment: variables that procs inherit.
        group, component: see `HostEntry`.
        ready_fd: a pipe to which the head writes a byte once `ready.json` is there; -1 for none.
        arguments: the agent's command line, without the interpreter and the module.
        relaunches: whether all hosts are this machine, and the head may start their agents again.
        held_fd: what holds *directory*, see `core.storage.scratch`; -1 if nothing does.
        lifeline_fd: a pipe whose other end the process that started the agents holds; they end with it. -1 for none.
        first_rank: see `HostEntry`.
        rejoins_s: for so long this agent, which was fenced before, may ask to be seated again; 0 for one at its start.
    """

    directory: Path
    folder: Path
    allocation: str
    rank: int
    num_hosts: int
    name: str
    key: bytes
    job_id: int | None
    host_names: list[str]
    environment: Mapping[str, str]
    group: str = ""
    component: int = -1
    ready_fd: int = -1
    arguments: tuple[str, ...] = ()
    relaunches: bool = False
    held_fd: int = -1
    lifeline_fd: int = -1
    rejoins_s: float = 0.0
    first_rank: int = 0

    @property
    def slurm_job_id(self) -> int | None:
        """The Slurm job that the allocation is, or is in as a whole; None for embedded hosts, which may be in any."""
        return self.job_id if self.owns_job else None

    @property
    def owns_job(self) -> bool:
        """Whether the allocation was made by a batch script of ours; an embedded one may be inside any Slurm job."""
        return self.job_id is not None and self.folder != self.directory
