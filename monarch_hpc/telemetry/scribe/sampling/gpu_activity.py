"""Reads what the processors of NVIDIA GPUs did between two looks: NVML's GPM, which Hopper and later have.

The site's DCGM reads the same counters. So they are read only while somebody asks for them.
"""

from __future__ import annotations

from typing import Any

from monarch_hpc.core.dataclass import dataclass

__all__ = ["UNKNOWN", "Activity", "ActivityReader"]

_METRICS = ("SM_UTIL", "ANY_TENSOR_UTIL", "DRAM_BW_UTIL")
"""Of `Activity`'s fields, by NVML's names: percent."""


@dataclass(frozen=True, slots=True)
class Activity:
    """Parts of the time between two looks in percent; -1 if unknown.

    Attributes:
        sm: in which the streaming multiprocessors had work.
        tensor: in which the tensor cores worked.
        memory: of the memory's bandwidth that was used.
    """

    sm: float
    tensor: float
    memory: float


UNKNOWN = Activity(-1.0, -1.0, -1.0)


class ActivityReader:
    """Reads the counters of one GPU.

    Args:
        nvml: the module `pynvml`, initialized.
        device: its handle.
    """

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml = nvml
        self._device = device
        self._before: Any = None  # the sample of the look before
        self._supported = self._query()

    def _query(self) -> bool:
        try:
            return bool(self._nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice)
        except (self._nvml.NVMLError, AttributeError):  # an older driver, or an older nvidia-ml-py
            return False

    def read(self) -> Activity:
        """The activity since the call before; unknown in the first one, and in the first one after `rest`."""
        if not self._supported:
            return UNKNOWN
        nvml, before = self._nvml, self._before
        now = None
        try:
            now = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._device, now)
            found = UNKNOWN if before is None else self._compare(before, now)
        except nvml.NVMLError:  # a part of a GPU (MIG), or another reader holds the counters
            found = UNKNOWN
            self._free(now)
            now = None
        self._before = now
        self._free(before)
        return found

    def rest(self) -> None:
        """Read no more until the next `read`."""
        self._free(self._before)
        self._before = None

    def _compare(self, before: Any, now: Any) -> Activity:
        nvml = self._nvml
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(_METRICS)
        question.sample1, question.sample2 = before, now
        for place, name in enumerate(_METRICS):
            question.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        nvml.nvmlGpmMetricsGet(question)
        answers = question.metrics[: len(_METRICS)]
        return Activity(*(one.value if one.nvmlReturn == nvml.NVML_SUCCESS else -1.0 for one in answers))

    def _free(self, sample: Any) -> None:
        if sample is not None:
            try:
                self._nvml.nvmlGpmSampleFree(sample)
            except self._nvml.NVMLError:
                pass  # the driver has gone, with its memory
