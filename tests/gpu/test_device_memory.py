"""One-sided memory of GPUs: by NVIDIA's driver, or else by one without a GPU that is stricter than that."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.device import build_driver
from tests.gpu.drill import (
    Scenario,
    bad_input,
    between_gpu_and_host,
    between_gpus,
    between_host_and_gpu,
    cancelled,
    killed,
    lists,
    pooled,
    refused,
    streams,
)
from tests.gpu.drills import run_drill
from tests.ucx.device import MISSING
from tests.ucx.installed import LIBRARIES, SHARED_MEMORY

_ROOT = Path(__file__).parents[2]
_ORDERS = {"cma": "[cma, tcp]", "tcp": "[tcp]"}


@pytest.fixture(
    scope="module",
    params=[
        "stand-in",
        pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.skipif(bool(MISSING), reason=MISSING)]),
    ],
)
def libraries(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """LD_LIBRARY_PATH with the driver."""
    own = os.environ.get("LD_LIBRARY_PATH", "")
    return own if request.param == "gpu" else f"{build_driver(tmp_path_factory.mktemp('driver'))}:{own}"


def run(libraries: str, scenarios: list[Scenario], order: str, staged: str = "warn") -> str:
    names = [one.__name__ for one in scenarios]
    environment = {"LD_LIBRARY_PATH": libraries}
    return run_drill("drill", _ORDERS[order], staged, *names, environment=environment, timeout_s=300)


@pytest.mark.parametrize("order", _ORDERS)
def test_bytes_arrive_whole_and_nothing_beside_them(libraries: str, order: str) -> None:
    run(libraries, [between_gpu_and_host, between_host_and_gpu, lists], order)


def test_gpus_of_a_host_open_each_others_memory(libraries: str) -> None:
    assert "through host memory" not in run(libraries, [between_gpus, bad_input, streams, cancelled], "cma")


def test_an_owner_that_is_killed_ends_its_readers_transfers(libraries: str) -> None:
    run(libraries, [killed], "cma")


def test_memory_that_cannot_be_opened_is_staged_and_the_log_says_so_once(tmp_path: Path) -> None:
    assert run(build_driver(tmp_path), [pooled], "cma").count("memory of GPUs is moved through host memory") == 1


def test_or_it_is_refused(tmp_path: Path) -> None:
    run(build_driver(tmp_path), [refused], "cma", "refuse")


@pytest.mark.ucx
@pytest.mark.parametrize("libucp", LIBRARIES)
def test_ucxs_threads_have_a_context_once_it_sees_memory_of_a_gpu(libucp: str, tmp_path: Path) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": build_driver(tmp_path), "UCX_TLS": SHARED_MEMORY}
    argv = [sys.executable, "-m", "tests.gpu.contexts", libucp]
    done = subprocess.run(argv, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "passed", done.stderr
