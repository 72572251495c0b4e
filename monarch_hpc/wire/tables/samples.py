"""Tables of what hosts, their procs, GPUs and links did over time: one row for each look at one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "GPU_SAMPLES",
    "HOST_SAMPLES",
    "NET_SAMPLES",
    "PROC_SAMPLES",
    "SAMPLES",
    "GpuSample",
    "HostSample",
    "NetSample",
    "ProcSample",
]


@dataclass(frozen=True, slots=True)
class ProcSample:
    """One proc, or a program on the head's machine, at one moment."""

    run: Annotated[str, "its run"]
    mesh: Annotated[int, "number of its mesh; -1 for a program"]
    rank: Annotated[int, "its rank in that mesh; 0 for a program"]
    host: Annotated[str, "name of its host"]
    pid: Annotated[int, "its process id"]
    t: Annotated[float, "when it was looked at, in seconds of Unix time by the clock of the head's host"]
    state: Annotated[str, "state letter of the kernel: `R` runs, `S` sleeps, `D` waits for a device, `T` is stopped"]
    rss_bytes: Annotated[int, "its resident memory, in bytes, shared pages included"]
    cpu_s: Annotated[float, "CPU time of all its threads so far, in seconds"]
    num_threads: Annotated[int, "number of its threads"]
    num_fds: Annotated[int, "number of its open files and sockets"]
    major_faults: Annotated[int, "pages so far that it had to wait for a disk to get"]


@dataclass(frozen=True, slots=True)
class HostSample:
    """One host at one moment."""

    host: Annotated[str, "name of the host"]
    t: Annotated[float, "when it was looked at, in seconds of Unix time by the clock of the head's host"]
    cpu_pct: Annotated[float, "part of its cores that was busy since the sample before, in percent; -1 in the first"]
    free_bytes: Annotated[int, "memory that can be used before the kernel ends a process; -1 if unknown"]
    cpu_stall_pct: Annotated[float, "part of the last 10 s in which some task waited for a core; -1 if unknown"]
    memory_stall_pct: Annotated[float, "the same for memory"]
    io_stall_pct: Annotated[float, "the same for a disk"]
    oom_kills: Annotated[int, "processes that the kernel has ended for want of memory in the job's control group"]
    tmp_free_bytes: Annotated[int, "free space of its folder for temporary files; -1 if unknown"]


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment, of those that the job was granted."""

    host: Annotated[str, "name of its host"]
    gpu: Annotated[int, "its number on the host"]
    uuid: Annotated[str, "its UUID, or the address of its slot"]
    t: Annotated[float, "when it was looked at, in seconds of Unix time by the clock of the head's host"]
    pid: Annotated[int, "the proc that has the most of its memory; 0 if no proc has any"]
    model: Annotated[str, "its name"]
    busy_pct: Annotated[float, "part of the time in which some kernel ran; -1 if unknown, as for a part of a GPU (MIG)"]
    used_bytes: Annotated[int, "its memory in use; -1 if unknown"]
    total_bytes: Annotated[int, "its memory; -1 if unknown"]
    power_w: Annotated[float, "its power, in watts; -1 if unknown"]
    temperature_c: Annotated[float, "its temperature, in degrees Celsius; -1 if unknown"]
    clock_mhz: Annotated[int, "clock of its processors; -1 if unknown"]
    max_clock_mhz: Annotated[int, "the fastest that clock can be; -1 if unknown"]
    throttle: Annotated[str, "why its clock is held down, e.g. `hw_thermal`, separated by commas; empty if it is not"]
    ecc_errors: Annotated[int, "errors of its memory that were not corrected, since the driver's start; -1 if unknown"]
    xid: Annotated[int, "number of the last error that the driver reported while it was looked at; 0 if none"]
    nvlink_tx_bytes: Annotated[int, "bytes sent over all its NVLinks so far; -1 if unknown"]
    nvlink_rx_bytes: Annotated[int, "bytes received over all its NVLinks so far; -1 if unknown"]
    sm_pct: Annotated[float, "part of the time since the look before in which its processors had work; -1 if unknown"]
    tensor_pct: Annotated[float, "part of that time in which its tensor cores worked; -1 if unknown"]
    memory_pct: Annotated[float, "part of its memory's bandwidth that was used in that time; -1 if unknown"]


@dataclass(frozen=True, slots=True)
class NetSample:
    """One port of one network device at one moment: counters since the device started."""

    host: Annotated[str, "name of its host"]
    device: Annotated[str, "name of the device"]
    port: Annotated[int, "number of the port; 0 where devices have one"]
    kind: Annotated[str, "`infiniband` (and RoCE), `slingshot`, or `ethernet`"]
    t: Annotated[float, "when it was looked at, in seconds of Unix time by the clock of the head's host"]
    tx_bytes: Annotated[int, "bytes sent"]
    rx_bytes: Annotated[int, "bytes received"]
    errors: Annotated[int, "packets and symbols that were damaged or dropped, and times that the link went down"]
    retransmits: Annotated[int, "packets sent again, or received out of order"]
    congestion: Annotated[int, "ticks or times in which the port had to wait to send, or was told to send slower"]


PROC_SAMPLES = Table("proc_samples", ProcSample, "Memory and CPU time of procs over time.", history=True)
HOST_SAMPLES = Table("host_samples", HostSample, "Load and free memory of hosts over time.", history=True)
GPU_SAMPLES = Table("gpu_samples", GpuSample, "Granted GPUs over time.", history=True)
NET_SAMPLES = Table("net_samples", NetSample, "Counters of network ports over time.", history=True)

SAMPLES: Mapping[str, Table[Any]] = {
    table.name: table for table in (PROC_SAMPLES, HOST_SAMPLES, GPU_SAMPLES, NET_SAMPLES)
}
"""The tables of what the helper of a host sees, see `telemetry.scribe`."""
