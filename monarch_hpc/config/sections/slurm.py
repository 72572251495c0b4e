"""Sections of the configuration about Slurm and what a site makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from monarch_hpc.core.dataclass import dataclass

__all__ = ["FlagValue", "LimitsConfig", "SlurmConfig"]

FlagValue = str | bool | None
"""Value of a command's flag: a string, True for a bare flag, None or False to leave it out."""


@dataclass(frozen=True)
class SlurmConfig:
    """Requests to Slurm, and their timeouts."""

    allocate_by: Literal["sbatch", "salloc"]
    partition: str | None
    qos: str | None
    account: str | None
    account_suffix: str | None
    reservation: str | None
    reservation_qos: str | None
    constraint: str | None
    network: str | None
    required: tuple[Literal["account", "partition", "qos", "time", "constraint"], ...]
    time_min: int
    time_by_nodes: Mapping[str, int]
    ntasks: Literal["per-node", "both", "none"]
    nodelist_allowed: bool
    exclude_allowed: bool
    gpus_form: Literal["gpus-per-node", "gres", "none"]
    job_flags: Mapping[str, FlagValue]
    step_flags: Mapping[str, FlagValue]
    extra: tuple[str, ...]
    poll_min_s: float
    poll_max_s: float
    command_timeout_s: float
    bootstrap_s: float
    idle_min: float
    notice_s: float


@dataclass(frozen=True)
class LimitsConfig:
    """Rules of the site that Slurm does not tell in words, or not in time."""

    running: Mapping[str, int]
    submitted: Mapping[str, int]
    reservation_idle_min: int | None
    preempt_grace_s: float | None
    no_chaining: tuple[str, ...]
