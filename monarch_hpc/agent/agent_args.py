"""An agent's place in its allocation, as its command line and its host say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["AgentArgs"]


@dataclass(frozen=True, slots=True)
class AgentArgs:
    """Where an agent sits: what its command line and its host say.

    Args:
        folder: where agents and head find each other: the directory, or that of this attempt of the job.
        host_names: names of all hosts by rank, where Slurm tells them.
        environment: what procs inherit.
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
