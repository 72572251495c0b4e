"""The section `tensor` of the configuration."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass

__all__ = ["TensorConfig"]


@dataclass(frozen=True)
class TensorConfig:
    """Limits of tensors on meshes."""

    first_frame_ints: int
    frame_ints: int
    flush_s: float
    window_ops: int
    collective_s: float
    keep_errors: int
    max_lent: int
    fence_s: float
    heals_an_hour: int
    kept_bytes: int
    reissue_bytes: int
    graph_least_ops: int
    graph_captures: int
