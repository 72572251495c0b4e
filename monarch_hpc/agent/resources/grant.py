"""The grant of this host: CPUs, memory, GPUs and addresses to listen on.

The grant, not the machine's totals: a job that shares a host must not be sized for all of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from monarch_hpc.agent.resources import cgroup
from monarch_hpc.core.machine.gpus import own_block, parse_device_gpus, parse_gpus
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
    """

    cpus: list[int]
    memory_bytes: int
    gpus: list[str]
    gpu_variable: str
    interfaces: dict[str, str]


def granted_memory(environment: Mapping[str, str], limit_bytes: int | None, total_bytes: int) -> int:
    """Return the smallest of Slurm's limit, the control group's limit and the machine's memory, in bytes."""
    sizes = [total_bytes]
    if limit_bytes is not None:
        sizes.append(limit_bytes)
    slurm_mib = environment.get("SLURM_MEM_PER_NODE", "")
    if slurm_mib.isdecimal() and int(slurm_mib):  # 0: all memory of the node
        sizes.append(int(slurm_mib) << 20)
    return min(sizes)


def read_grant(environment: Mapping[str, str], wanted: Sequence[str], local_place: tuple[int, int] | None) -> Grant:
    """Read the grant of this process's host.

    Args:
        wanted: the configured interfaces, see `choose_interfaces`.
        local_place: this host's rank and the number of hosts, if all hosts are this machine; otherwise None.

    Raises:
        ConfigError: see `choose_interfaces`.
    """
    variable, gpus = parse_gpus(environment) or ("CUDA_VISIBLE_DEVICES", [])
    if local_place is not None:
        if parse_gpus(environment) is None:
            gpus = parse_device_gpus(os.listdir("/dev"))
        gpus = own_block(gpus, *local_place)
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Grant(
        cpus=sorted(os.sched_getaffinity(0)),
        memory_bytes=granted_memory(environment, cgroup.memory_limit(), total_bytes),
        gpus=gpus,
        gpu_variable=variable,
        interfaces=choose_interfaces(read_interfaces(), wanted, local=local_place is not None),
    )
