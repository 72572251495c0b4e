"""Tensors on GPUs between procs: Parameters in bfloat16, busy streams, states, threads, a kill; both allocators."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.gpu.torch_drill import Scenario, busy_streams, killed, parameters, states, threads
from tests.ucx.device import MISSING

_ROOT = Path(__file__).parents[2]
_ALL: list[Scenario] = [parameters, busy_streams, states, threads, killed]


@functools.cache
def _obstacle() -> str:
    import torch

    return MISSING or ("" if torch.cuda.is_available() else f"torch {torch.__version__} does not reach the GPU")


def run(device: str, path: str, scenarios: list[Scenario], **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.torch_drill", device, path, *(one.__name__ for one in scenarios)],
        cwd=_ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0 and "passed" in done.stdout.splitlines(), f"status {done.returncode}:\n{done.stdout}"
    return done.stdout


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
