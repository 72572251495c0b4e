"""Samples of the GPUs that a job was granted: by NVML, which needs no context on the device; or from /sys.

The door to `nvidia-ml-py`. Without it, or without a driver, a host has no NVIDIA GPUs here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from monarch_hpc.telemetry.scribe.sampling.gpu_activity import UNKNOWN, Activity, ActivityReader
from monarch_hpc.telemetry.scribe.sampling.net import SYS
from monarch_hpc.wire.tables.samples import GpuSample

__all__ = ["NvidiaGpus", "load_nvml", "sample_amd"]

V = TypeVar("V")

_THROTTLE = {
    "SwPowerCap": "power_cap",
    "HwSlowdown": "hw_slowdown",
    "SwThermalSlowdown": "sw_thermal",
    "HwThermalSlowdown": "hw_thermal",
    "HwPowerBrakeSlowdown": "power_brake",
}
"""The reasons for a low clock that are a fault, by NVML's name; an idle GPU, or one whose clock a user has set, has
others."""

_AMD = "0x1002"


def load_nvml() -> Any:
    """Return NVML, initialized; None if there is none, or no driver."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


class NvidiaGpus:
    """The NVIDIA GPUs of a grant.

    Args:
        nvml: the module `pynvml`, initialized.
        granted: their numbers or UUIDs, as Slurm lists them.
    """

    def __init__(self, nvml: Any, granted: Sequence[str]) -> None:
        self._nvml = nvml
        self._handles = [handle for name in granted if (handle := self._find(name)) is not None]
        self._activity = [ActivityReader(nvml, handle) for handle in self._handles]
        self._errors = self._read(nvml.nvmlEventSetCreate)
        for handle in self._handles:
            self._read(nvml.nvmlDeviceRegisterEvents, handle, nvml.nvmlEventTypeXidCriticalError, self._errors)

    def sample(self, host: str, t: float, pids: Collection[int], *, watched: bool) -> Iterator[GpuSample]:
        """Look at all of them.

        Args:
            pids: the host's procs.
            watched: whether somebody asks for samples of GPUs, so that their activity is read.
        """
        errors = self._take_errors()
        for handle, reader in zip(self._handles, self._activity, strict=True):
            if not watched:
                reader.rest()
            activity = reader.read() if watched else UNKNOWN
            yield self._sample(handle, host, t, pids, errors, activity)

    def _find(self, name: str) -> Any:
        nvml = self._nvml
        if name.isdecimal():
            return self._read(nvml.nvmlDeviceGetHandleByIndex, int(name))
        return self._read(nvml.nvmlDeviceGetHandleByUUID, name)

    def _sample(
        self, handle: Any, host: str, t: float, pids: Collection[int], errors: dict[str, int], activity: Activity
    ) -> GpuSample:
        nvml, read = self._nvml, self._read
        uuid = _text(read(nvml.nvmlDeviceGetUUID, handle))
        rates = read(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = read(nvml.nvmlDeviceGetMemoryInfo, handle)
        power_mw = read(nvml.nvmlDeviceGetPowerUsage, handle)
        used = {
            one.pid: one.usedGpuMemory or 0
            for one in read(nvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
            if one.pid in pids
        }
        sent, received = self._nvlink(handle)
        return GpuSample(
            host,
            _or(read(nvml.nvmlDeviceGetIndex, handle), -1),
            uuid,
            t,
            max(used, key=lambda pid: used[pid], default=0),
            _text(read(nvml.nvmlDeviceGetName, handle)),
            -1.0 if rates is None else float(rates.gpu),
            -1 if memory is None else int(memory.used),
            -1 if memory is None else int(memory.total),
            -1.0 if power_mw is None else power_mw / 1000,
            float(_or(read(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU), -1)),
            _or(read(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), -1),
            _or(read(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM), -1),
            self._throttle(handle),
            _or(
                read(
                    nvml.nvmlDeviceGetTotalEccErrors,
                    handle,
                    nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                    nvml.NVML_VOLATILE_ECC,
                ),
                -1,
            ),
            errors.get(uuid, 0),
            sent,
            received,
            activity.sm,
            activity.tensor,
            activity.memory,
        )

    def _throttle(self, handle: Any) -> str:
        bits = _or(self._read(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle), 0)
        known = ((getattr(self._nvml, f"nvmlClocksThrottleReason{name}", 0), word) for name, word in _THROTTLE.items())
        return ",".join(word for bit, word in known if bits & bit)

    def _nvlink(self, handle: Any) -> tuple[int, int]:
        """Bytes sent and received over all links: the driver counts KiB."""
        nvml, every_link = self._nvml, 0xFFFFFFFF
        fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, every_link),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, every_link),
        ]
        found = self._read(nvml.nvmlDeviceGetFieldValues, handle, fields) or []
        counts = [one.value.ullVal << 10 if one.nvmlReturn == nvml.NVML_SUCCESS else -1 for one in found]
        return (counts[0], counts[1]) if len(counts) == 2 else (-1, -1)

    def _take_errors(self) -> dict[str, int]:
        """The errors (XID) that have come since the last look, by UUID."""
        found: dict[str, int] = {}
        while self._errors is not None:
            event = self._read(self._nvml.nvmlEventSetWait_v2, self._errors, 0)
            if event is None:  # it timed out: there are no more
                break
            found[_text(self._read(self._nvml.nvmlDeviceGetUUID, event.device))] = int(event.eventData)
        return found

    def _read(self, function: Callable[..., V], *arguments: object) -> V | None:
        """The answer of NVML; None if this device, or this driver, does not have one."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def sample_amd(host: str, t: float, granted: Sequence[str], root: Path = SYS) -> Iterator[GpuSample]:
    """Look at the AMD GPUs of a grant.

    Args:
        granted: their numbers, as Slurm lists them.
        root: where /sys is.
    """
    folders = sorted((root / "class" / "drm").glob("card[0-9]*/device"), key=lambda one: int(_digits(one.parent.name)))
    own = [folder for folder in folders if _read(folder / "vendor") == _AMD]
    for number, folder in enumerate(own):
        if str(number) in granted:
            yield _amd(host, t, number, folder)


def _amd(host: str, t: float, number: int, folder: Path) -> GpuSample:
    sensors = next(iter(sorted((folder / "hwmon").glob("hwmon*"))), folder)
    power_uw = max(_number(sensors / "power1_average"), _number(sensors / "power1_input"))
    heat_mc = _number(sensors / "temp1_input")
    clocks = [line.split() for line in _read(folder / "pp_dpm_sclk").splitlines()]
    speeds = [int(_digits(words[1])) for words in clocks if len(words) > 1 and _digits(words[1])]
    current = [int(_digits(words[1])) for words in clocks if words[-1:] == ["*"] and _digits(words[1])]
    return GpuSample(
        host,
        number,
        _read(folder / "unique_id") or folder.resolve().name,
        t,
        0,
        _read(folder / "product_name") or "AMD GPU",
        float(_number(folder / "gpu_busy_percent")),
        _number(folder / "mem_info_vram_used"),
        _number(folder / "mem_info_vram_total"),
        -1.0 if power_uw < 0 else power_uw / 1e6,
        -1.0 if heat_mc < 0 else heat_mc / 1000,
        max(current, default=-1),
        max(speeds, default=-1),
        "",
        -1,
        0,
        -1,
        -1,
        -1.0,
        -1.0,
        -1.0,
    )


def _digits(text: str) -> str:
    return "".join(character for character in text if character.isdecimal())


def _number(path: Path) -> int:
    text = _read(path)
    return int(text) if text.isdecimal() else -1


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _or(value: int | None, unknown: int) -> int:
    return unknown if value is None else int(value)


def _text(value: str | bytes | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
