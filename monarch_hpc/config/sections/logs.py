"""The section `logs` of the configuration."""

from __future__ import annotations

from typing import Literal

from monarch_hpc.core.dataclass import dataclass

__all__ = ["LogsConfig"]


@dataclass(frozen=True)
class LogsConfig:
    """Handling of the output and log records of procs."""

    stream_to_client: bool
    fold_s: float
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
    to_logging: bool
    with_actor: bool
    proc_rate_bytes: int
    host_rate_bytes: int
    max_file_bytes: int
    keep_runs: int
