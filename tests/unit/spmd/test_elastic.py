"""The GPU that a script finds under its local rank."""

from __future__ import annotations

import os

import pytest

from monarch_hpc.spmd.elastic import see_own_gpu


@pytest.mark.parametrize(
    ("visible", "gpus", "local_rank", "seen"),
    [
        ("2,0,1,3", ("2", "0", "1", "3"), 2, "0,1,2,3"),
        ("0,1", ("0", "1"), 0, "0,1"),
        ("1", ("1",), 0, "1"),
        ("0,1,2", ("2", "0", "1"), 2, "0,1,2"),  # changed by user code, on purpose
    ],
)
def test_the_own_gpu_is_the_device_of_the_local_rank(
    monkeypatch: pytest.MonkeyPatch, visible: str, gpus: tuple[str, ...], local_rank: int, seen: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    see_own_gpu(gpus, local_rank)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen


def test_without_gpus_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    see_own_gpu((), 1)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
