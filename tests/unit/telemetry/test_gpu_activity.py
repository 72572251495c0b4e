"""The activity of GPUs is read while somebody asks for it, and not otherwise."""

from __future__ import annotations

import importlib.util

import pytest

from monarch_hpc.telemetry.scribe.sampling.gpus import NvidiaGpus
from monarch_hpc.telemetry.scribe.sampling.samples import Samples
from tests.system.support.recorded_nvml import RecordedNvml

needs_nvml = pytest.mark.skipif(
    importlib.util.find_spec("pynvml") is None, reason="needs nvidia-ml-py: pip install 'monarch-hpc[telemetry]'"
)


@needs_nvml
def test_the_activity_of_gpus_is_read_while_somebody_asks_for_it() -> None:
    nvml = RecordedNvml()
    gpus = NvidiaGpus(nvml, ["0", "1"])

    def look(*, watched: bool) -> list[tuple[float, float, float]]:
        return [(row.sm_pct, row.tensor_pct, row.memory_pct) for row in gpus.sample("n1", 1.0, set(), watched=watched)]

    nothing = (-1.0, -1.0, -1.0)
    assert look(watched=False) == [nothing, nothing] and not nvml.samples
    assert look(watched=True) == [nothing, nothing]  # there is no look before
    assert look(watched=True) == [nothing, (61.5, 40.25, -1.0)]
    assert len(nvml.samples) == 1
    nvml.busy = True
    assert look(watched=True) == [nothing, nothing] and not nvml.samples
    nvml.busy = False
    assert look(watched=True) == [nothing, nothing]
    assert look(watched=True)[1][0] == 61.5
    assert look(watched=False) == [nothing, nothing] and not nvml.samples


@needs_nvml
def test_gpus_are_watched_for_a_minute_after_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    nvml = RecordedNvml()
    monkeypatch.setattr("monarch_hpc.telemetry.scribe.sampling.samples.load_nvml", lambda: nvml)
    samples = Samples("n1", ["1"], 5.0, lambda: 0, lambda: now[0])

    def sm_pct() -> float:
        (row,) = samples.take([])["gpu_samples"]
        return float(row.sm_pct)

    samples.asked(["host_samples"])
    assert [sm_pct(), sm_pct()] == [-1.0, -1.0]
    samples.asked(["gpu_samples", "procs"])
    assert [sm_pct(), sm_pct()] == [-1.0, 61.5]
    now[0] += 61.0
    assert [sm_pct(), sm_pct()] == [-1.0, -1.0]
