"""The section `run` of the configuration."""

from __future__ import annotations

from typing import Literal

from monarch_hpc.core.dataclass import dataclass

__all__ = ["RunConfig"]


@dataclass(frozen=True)
class RunConfig:
    """The end of a run, and what becomes of it when its program is lost."""

    stop_grace_s: float
    cancel_s: float
    on_loss: Literal["stop", "hold", "finish"]
    hold_s: float
    kept_bytes: int
