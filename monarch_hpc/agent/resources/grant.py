"""The grant of this host: CPUs, memory, GPUs and addresses to listen on.

The grant, not the machine's totals: a job that shares a host must not be sized for all of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from monarch_hpc.config import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine import cgroup
from monarch_hpc.core.machine.gpus import ordered_gpus, own_block, parse_device_gpus, parse_gpus
from monarch_hpc.core.machine.interfaces import choose_interfaces, read_interfaces

__all__ = ["Grant", "granted_memory", "read_grant"]


@dataclass(frozen=True, slots=True)
class Grant:
    """The resources that procs on this host may use.

    Attributes:
        cpus: CPU numbers.
        gpus: indices or UUIDs, in Slurm's order.
        gpu_variable: the environment variable that lists a proc's GPUs.
        interfaces: name -> IPv4 address of the interfaces to listen on, best first.
        num_sharing: number of the allocation's hosts that have these CPUs: more than one where all are this machine.
        is_own: whether Slurm has granted the CPUs to this host; else other programs use them, too.
    """

    cpus: list[int]
    memory_bytes: int
    gpus: list[str]
    gpu_variable: str
    interfaces: dict[str, str]
    num_sharing: int = 1
    is_own: bool = True


def granted_memory(environment: Mapping[str, str], limit_bytes: int | None, total_bytes: int) -> int:
    """Return the smallest of Slurm's limit, the control group's limit and the machine's memory, in bytes."""
    sizes = [total_bytes]
    if limit_bytes is not None:
        sizes.append(limit_bytes)
    slurm_mib = environment.get("SLURM_MEM_PER_NODE", "")
    if slurm_mib.isdecimal() and int(slurm_mib):  # 0: all memory of the node
        sizes.append(int(slurm_mib) << 20)
    return min(sizes)


def read_grant(environment: Mapping[str, str], config: Config, local_place: tuple[int, int] | None) -> Grant:
    """Read the grant of this process's host.

    Args:
        local_place: this host's rank and the number of hosts, if all hosts are this machine; otherwise None.

    Raises:
        ConfigError: see `choose_interfaces`.
    """
    listed = parse_gpus(environment)
    variable, gpus = listed or ("CUDA_VISIBLE_DEVICES", [])
    # Where the partition implies the GPUs, Slurm does not know them, and the job has the whole host.
    if listed is None and (local_place is not None or config.slurm.gpus_form == "none"):
        gpus = parse_device_gpus(os.listdir("/dev"))
    if local_place is not None:
        gpus = own_block(gpus, *local_place)
    procs = config.procs
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Grant(
        cpus=sorted(os.sched_getaffinity(0)),
        memory_bytes=granted_memory(environment, cgroup.memory_limit(), total_bytes),
        gpus=ordered_gpus(gpus, procs.gpu_order),
        gpu_variable=variable if procs.gpu_variable == "auto" else procs.gpu_variable,
        interfaces=choose_interfaces(
            read_interfaces(), config.fabric.interfaces.compute, local=local_place is not None
        ),
        num_sharing=1 if local_place is None else local_place[1],
        is_own=local_place is None,
    )
