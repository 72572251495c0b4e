"""The section `heal` of the configuration."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass

__all__ = ["HealConfig"]


@dataclass(frozen=True)
class HealConfig:
    """Starting agents again, its rations, and the hosts that are kept for the loss of others."""

    tries: int
    backoff_s: float
    backoff_max_s: float
    max_pending: int
    per_hour: int
    spare_hosts: int
