"""Tensors on GPUs between procs: Parameters in bfloat16, busy streams, states, threads, a kill; both allocators."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("torch")

from tests.gpu.drills import run_drill
from tests.gpu.torch_drill import Scenario, busy_streams, killed, parameters, states, threads
from tests.ucx.device import MISSING

_ALL: list[Scenario] = [parameters, busy_streams, states, threads, killed]


@functools.cache
def _obstacle() -> str:
    import torch

    return MISSING or ("" if torch.cuda.is_available() else f"torch {torch.__version__} does not reach the GPU")


def run(device: str, path: str, scenarios: list[Scenario], **environment: str) -> str:
    return run_drill("torch_drill", device, path, *(one.__name__ for one in scenarios), environment=environment)


@pytest.mark.slow  # it imports torch in three processes
def test_without_a_gpu_the_same_programs_pass_in_host_memory() -> None:
    run("cpu", "cma", _ALL)


@pytest.mark.gpu
@pytest.mark.parametrize(("expandable", "path"), [("False", "cuda_ipc"), ("True", "staged")])
def test_tensors_move_between_procs_of_a_gpu(expandable: str, path: str) -> None:
    if _obstacle():
        pytest.skip(_obstacle())
    settings = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
    told = run("cuda", path, _ALL, **settings)
    assert ("through host memory" in told) is (path == "staged")
