"""The arguments of an agent, from its command line and its host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AgentArgs"]


@dataclass(frozen=True, slots=True)
class AgentArgs:
    """The allocation, rank and environment of one agent.

    Args:
        folder: where agents and head exchange files: *directory*, or its subfolder for this attempt of the job.
        host_names: names of all hosts by rank; empty if Slurm does not provide them.
        environment: variables that procs inherit.
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
