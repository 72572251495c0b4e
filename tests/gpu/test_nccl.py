"""NCCL in a group of one rank: connecting, each collective, types, the order of streams, an abort, the next epoch."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
import torch.distributed as dist

from monarch_hpc.tensor.sharded.procs import NCCL_ENVIRONMENT
from tests.gpu.drills import run_drill


@pytest.mark.slow  # it imports torch in a process
def test_without_a_gpu_the_same_program_passes_with_gloo() -> None:
    run_drill("nccl_drill", "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or not dist.is_nccl_available(),
    reason=f"torch {torch.__version__} does not reach a GPU, or has no NCCL",
)
def test_a_rank_that_is_alone_has_all_collectives_of_nccl() -> None:
    run_drill("nccl_drill", "cuda", environment=NCCL_ENVIRONMENT)
