"""Metrics of numbers on a GPU: nothing waits for it."""

from __future__ import annotations

import time

import pytest

from monarch_hpc.actor.device_values import DeviceValues

torch = pytest.importorskip("torch")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason=f"torch {torch.__version__} does not reach a GPU")
def test_numbers_on_a_gpu_are_read_when_they_are_ready() -> None:
    values, found = DeviceValues(), list[float]()
    torch.cuda._sleep(2_000_000_000)  # cycles: about a second, in which a read would wait
    begin_s = time.monotonic()
    for number in range(100):
        values.add(torch.full((), number / 4, device="cuda"), found.append)
    values.write_ready()
    assert time.monotonic() - begin_s < 0.5 and not found
    torch.cuda.synchronize()
    values.write_ready()
    assert found == [number / 4 for number in range(100)] and not values.pending
