"""Tensors of meshes on GPUs: collectives, a training, the same with CUDA graphs, layers of networks, and a heal.

Two ranks that share the only GPU go by way of host memory; with two GPUs, by NCCL.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from tests.gpu.drills import run_drill

_ALL = ("collectives", "trained", "graphed", "layered", "healed")


def run(device: str, num: int, scenarios: tuple[str, ...]) -> None:
    """Run scenarios of the drill, on as many procs."""
    run_drill("tensor_drill", device, str(num), *scenarios)


@pytest.mark.slow  # it starts procs for each scenario, twice
def test_without_a_gpu_the_same_programs_pass_in_host_memory() -> None:
    run("cpu", 2, _ALL)


@pytest.mark.gpu
@pytest.mark.parametrize("scenario", _ALL)
@pytest.mark.parametrize("num", [1, 2])
def test_tensors_of_a_mesh_are_on_its_gpus(num: int, scenario: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} does not reach a GPU")
    run("cuda", num, (scenario,))
