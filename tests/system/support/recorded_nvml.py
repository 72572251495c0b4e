"""NVML on a host with two GPUs, from recorded answers."""

from __future__ import annotations

import importlib
import re
from types import SimpleNamespace
from typing import Any

__all__ = ["RecordedNvml"]


class NVMLError(Exception):
    """Not supported, not found, or timed out."""


class RecordedNvml:
    """The answers of NVML on a host with two GPUs: one at rest, and one that is too hot and has an error."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    nvmlEventTypeXidCriticalError = 8
    nvmlClocksThrottleReasonSwPowerCap = 0x4
    nvmlClocksThrottleReasonHwSlowdown = 0x8
    nvmlClocksThrottleReasonSwThermalSlowdown = 0x20
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
    nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80

    def __init__(self) -> None:
        self.events = [SimpleNamespace(device=1, eventData=79)]
        self.samples: list[Any] = []  # of GPM, which are not freed yet
        self.busy = False  # another reader has GPM's counters

    def __getattr__(self, name: str) -> Any:
        """NVML's name of a function: ``nvmlDeviceGetName`` is `device_get_name`. Structures are nvidia-ml-py's own."""
        if "c_nvmlGpm" in name or name.startswith("NVML_GPM"):
            return getattr(importlib.import_module("pynvml"), name)
        return object.__getattribute__(self, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removeprefix("nvml")).lower())

    def _unsupported(self, *_: object) -> Any:
        raise NVMLError

    # Only the second GPU has GPM.

    def gpm_query_device_support(self, handle: int) -> Any:
        return SimpleNamespace(isSupportedDevice=handle)

    def gpm_sample_alloc(self) -> Any:
        self.samples.append(self.c_nvmlGpmSample_t(self.struct_c_nvmlGpmSample_t()))
        return self.samples[-1]

    def gpm_sample_get(self, _handle: int, _sample: Any) -> None:
        if self.busy:
            self._unsupported()

    def gpm_sample_free(self, sample: Any) -> None:
        self.samples.remove(sample)

    def gpm_metrics_get(self, question: Any) -> None:
        assert question.version == 1 and bool(question.sample1) and bool(question.sample2)
        for place, (number, value, status) in enumerate([(2, 61.5, 0), (5, 40.25, 0), (10, 7.0, 3)]):
            metric = question.metrics[place]
            assert metric.metricId == number
            metric.value, metric.nvmlReturn = value, status
        assert question.numMetrics == 3

    def device_get_handle_by_index(self, index: int) -> int:
        return index if index < 2 else self._unsupported()

    def device_get_handle_by_uuid(self, uuid: str) -> int:
        return int(uuid[-1]) if uuid.startswith("GPU-") else self._unsupported()

    def event_set_create(self) -> str:
        return "set"

    def device_register_events(self, *_: object) -> None:
        return None

    def event_set_wait_v2(self, _set: str, _timeout_ms: int) -> Any:
        return self.events.pop() if self.events else self._unsupported()

    def device_get_uuid(self, handle: int) -> str:
        return f"GPU-{handle}"

    def device_get_index(self, handle: int) -> int:
        return handle

    def device_get_name(self, _handle: int) -> bytes:
        return b"NVIDIA H100 80GB HBM3"

    def device_get_utilization_rates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=96, memory=40) if handle else self._unsupported()

    def device_get_memory_info(self, _handle: int) -> Any:
        return SimpleNamespace(used=5 << 30, total=80 << 30)

    def device_get_power_usage(self, handle: int) -> int:
        return 70_500 if handle == 0 else 699_000

    def device_get_compute_running_processes(self, handle: int) -> list[Any]:
        busy = [SimpleNamespace(pid=7, usedGpuMemory=None), SimpleNamespace(pid=8, usedGpuMemory=3 << 30)]
        return [*busy, SimpleNamespace(pid=9, usedGpuMemory=4 << 30)] if handle else []

    def device_get_temperature(self, handle: int, _sensor: int) -> int:
        return 91 if handle else 35

    def device_get_clock_info(self, handle: int, _clock: int) -> int:
        return 900 if handle else 1980

    def device_get_max_clock_info(self, _handle: int, _clock: int) -> int:
        return 1980

    def device_get_current_clocks_throttle_reasons(self, handle: int) -> int:
        return 0x48 if handle else 0x1  # 1: it is idle

    def device_get_total_ecc_errors(self, handle: int, _kind: int, _counter: int) -> int:
        return 2 if handle else 0

    def device_get_field_values(self, handle: int, fields: list[tuple[int, int]]) -> list[Any]:
        return [
            SimpleNamespace(nvmlReturn=0 if handle else 3, value=SimpleNamespace(ullVal=number)) for number, _ in fields
        ]
