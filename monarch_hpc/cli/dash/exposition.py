"""Text for Prometheus, in its exposition format, version 0.0.4. Pure.

Counters of endpoints and CPU time have a series for each process, with its process id: a sum over processes would fall
when one ends, and a counter that falls passes for one that began anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from monarch_hpc.cli.output import plain
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.calls import ProcCalls
from monarch_hpc.wire.tables.overview import HostRow
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.samples import GpuSample, HostSample

__all__ = ["CONTENT_TYPE", "Scrape", "render"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTER, _GAUGE = "counter", "gauge"

_FAMILIES: Mapping[str, tuple[str, str]] = {
    "up": (_GAUGE, "Whether the head of the allocation answers."),
    "missing": (_GAUGE, "Hosts and programs that did not answer in time, or whose rows did not fit."),
    "hosts": (_GAUGE, "Hosts of the allocation by state."),
    "procs": (_GAUGE, "Processes of runs by state."),
    "proc_resident_memory_bytes": (_GAUGE, "Resident memory of a process, shared pages included."),
    "proc_cpu_seconds_total": (_COUNTER, "CPU time of all threads of a process."),
    "endpoint_calls_total": (_COUNTER, "Calls that a process has handled."),
    "endpoint_failed_total": (_COUNTER, "Calls that raised."),
    "endpoint_run_seconds_total": (_COUNTER, "Time for which calls ran."),
    "endpoint_wait_seconds_total": (_COUNTER, "Time for which calls waited in the process before they ran."),
    "host_cpu_busy_ratio": (_GAUGE, "Part of the granted cores that was busy."),
    "host_memory_available_bytes": (_GAUGE, "Memory that can be used before the kernel ends a process."),
    "host_cpu_stall_ratio": (_GAUGE, "Part of the last 10 s in which some task waited for a core."),
    "host_memory_stall_ratio": (_GAUGE, "Part of the last 10 s in which some task waited for memory."),
    "host_io_stall_ratio": (_GAUGE, "Part of the last 10 s in which some task waited for a disk."),
    "host_tmp_available_bytes": (_GAUGE, "Free space of the folder for temporary files."),
    "host_oom_kills_total": (_COUNTER, "Processes that the kernel has ended for want of memory in the job."),
    "gpu_busy_ratio": (_GAUGE, "Part of the time in which some kernel ran."),
    "gpu_sm_ratio": (_GAUGE, "Part of the time in which the processors had work."),
    "gpu_tensor_ratio": (_GAUGE, "Part of the time in which the tensor cores worked."),
    "gpu_memory_bandwidth_ratio": (_GAUGE, "Part of the memory's bandwidth that was used."),
    "gpu_memory_used_bytes": (_GAUGE, "Memory of the GPU in use."),
    "gpu_memory_total_bytes": (_GAUGE, "Memory of the GPU."),
    "gpu_power_watts": (_GAUGE, "Power of the GPU."),
    "gpu_temperature_celsius": (_GAUGE, "Temperature of the GPU."),
    "gpu_clock_hertz": (_GAUGE, "Clock of the GPU's processors."),
    "gpu_throttled": (_GAUGE, "Whether the clock is held down."),
    "gpu_ecc_errors_total": (_COUNTER, "Errors of the GPU's memory that were not corrected, since the driver's start."),
    "gpu_nvlink_transmit_bytes_total": (_COUNTER, "Bytes sent over all NVLinks of the GPU."),
    "gpu_nvlink_receive_bytes_total": (_COUNTER, "Bytes received over all NVLinks of the GPU."),
}

_PREFIX = "monarch_hpc_"


@dataclass(frozen=True, slots=True)
class Scrape:
    """What an allocation answered with.

    Attributes:
        up: whether its head answers; without it there are no rows.
        num_missing: number of hosts and programs whose rows are not there.
        host_samples, gpu_samples: the latest of each host and GPU.
    """

    allocation: str
    up: bool
    num_missing: int = 0
    hosts: Sequence[HostRow] = ()
    calls: Sequence[ProcCalls] = ()
    host_samples: Sequence[HostSample] = ()
    gpu_samples: Sequence[GpuSample] = ()


@dataclass(frozen=True, slots=True)
class _Families:
    """Series by family and labels. Each has one value: a collector refuses a text in which one is there twice."""

    allocation: str = ""
    series: dict[str, dict[str, float]] = field(default_factory=lambda: {name: {} for name in _FAMILIES})

    def add(self, name: str, value: float, labels: Mapping[str, object]) -> None:
        """Add to a series, which begins at 0."""
        key = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
        known = self.series[name]
        known[key] = known.get(key, 0) + value

    def add_known(self, values: Mapping[str, float], labels: Mapping[str, object]) -> None:
        """Add to several series of the same labels, without values that are unknown, which are below 0."""
        for name, value in values.items():
            if value >= 0:
                self.add(name, value, labels)


def render(scrapes: Iterable[Scrape]) -> bytes:
    """Return the text about some allocations."""
    families = _Families()
    for one in scrapes:
        labels = {"allocation": one.allocation}
        families.add("up", int(one.up), labels)
        if one.up:
            families.add("missing", one.num_missing, labels)
            _add_processes(families, one)
            _add_hosts(families, one)
    lines = []
    for name, series in families.series.items():
        kind, text = _FAMILIES[name]
        if series:
            lines += [f"# HELP {_PREFIX}{name} {text}", f"# TYPE {_PREFIX}{name} {kind}"]
            lines += [f"{_PREFIX}{name}{{{labels}}} {value!r}" for labels, value in series.items()]
    return "".join(f"{line}\n" for line in lines).encode(errors="replace")


def _add_processes(families: _Families, one: Scrape) -> None:
    for proc in one.calls:
        state = {"allocation": one.allocation, "run": proc.run, "host": proc.host, "state": proc.state}
        families.add("procs", 1, state)
        if proc.state != "ended":
            labels = _place(one, proc)
            families.add("proc_resident_memory_bytes", proc.rss_bytes, labels)
            families.add("proc_cpu_seconds_total", proc.cpu_s, labels)
        for count in proc.scene.endpoints:
            labels = {**_place(one, proc), "actor": count.name, "endpoint": count.endpoint}
            families.add("endpoint_calls_total", count.num_calls, labels)
            families.add("endpoint_failed_total", count.num_failed, labels)
            families.add("endpoint_run_seconds_total", count.total_s, labels)
            families.add("endpoint_wait_seconds_total", count.queued_total_s, labels)


def _place(one: Scrape, proc: RunProcess) -> dict[str, object]:
    place = {"run": proc.run, "mesh": proc.mesh, "rank": proc.rank, "host": proc.host, "pid": proc.pid}
    return {"allocation": one.allocation, **place}


def _add_hosts(families: _Families, one: Scrape) -> None:
    for host in one.hosts:
        families.add("hosts", 1, {"allocation": one.allocation, "state": host.state})
    for seen in one.host_samples:
        families.add_known(
            {
                "host_cpu_busy_ratio": seen.cpu_pct / 100,
                "host_memory_available_bytes": seen.free_bytes,
                "host_cpu_stall_ratio": seen.cpu_stall_pct / 100,
                "host_memory_stall_ratio": seen.memory_stall_pct / 100,
                "host_io_stall_ratio": seen.io_stall_pct / 100,
                "host_tmp_available_bytes": seen.tmp_free_bytes,
                "host_oom_kills_total": seen.oom_kills,
            },
            {"allocation": one.allocation, "host": seen.host},
        )
    for gpu in one.gpu_samples:
        families.add_known(
            {
                "gpu_busy_ratio": gpu.busy_pct / 100,
                "gpu_sm_ratio": gpu.sm_pct / 100,
                "gpu_tensor_ratio": gpu.tensor_pct / 100,
                "gpu_memory_bandwidth_ratio": gpu.memory_pct / 100,
                "gpu_memory_used_bytes": gpu.used_bytes,
                "gpu_memory_total_bytes": gpu.total_bytes,
                "gpu_power_watts": gpu.power_w,
                "gpu_temperature_celsius": gpu.temperature_c,
                "gpu_clock_hertz": gpu.clock_mhz * 1_000_000,
                "gpu_throttled": int(gpu.throttle != ""),
                "gpu_ecc_errors_total": gpu.ecc_errors,
                "gpu_nvlink_transmit_bytes_total": gpu.nvlink_tx_bytes,
                "gpu_nvlink_receive_bytes_total": gpu.nvlink_rx_bytes,
            },
            {
                "allocation": one.allocation,
                "host": gpu.host,
                "gpu": gpu.gpu,
                "uuid": gpu.uuid,
                "model": gpu.model,
            },
        )


def _escaped(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
