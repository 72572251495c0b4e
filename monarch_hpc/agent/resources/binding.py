"""Binding of a host's procs to CPUs and NUMA nodes.

Planning is pure: the grant and the topology are arguments. `apply` is for a process with one thread.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from monarch_hpc.core.dataclass import dataclass

__all__ = [
    "KEYS",
    "Binding",
    "Topology",
    "apply",
    "check_bindings",
    "given_bindings",
    "parse_numbers",
    "read_topology",
    "render_numbers",
    "shares",
    "threads_of_each",
]

KEYS = ("cpunodebind", "membind", "physcpubind", "cpus")
"""The keys of a binding, named as in numactl (NUMA nodes, NUMA nodes, CPUs) and taskset (CPUs)."""

_CPU_KEYS = ("physcpubind", "cpus")
_MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
"""Number of the system call; the C library has no wrapper for it, and libnuma is not installed everywhere."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding of one proc; an empty list leaves it unbound.

    Attributes:
        cpus: CPU numbers.
        memory_nodes: NUMA nodes.
    """

    cpus: list[int] = field(default_factory=list)
    memory_nodes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Topology:
    """The topology of a machine, as far as the kernel reports it.

    Attributes:
        nodes: NUMA node -> its CPUs.
        cores: CPU -> the first CPU of its core.
        gpu_nodes: index or UUID of a GPU -> its NUMA node.
    """

    nodes: Mapping[int, Sequence[int]]
    cores: Mapping[int, int]
    gpu_nodes: Mapping[str, int]

    def node_of(self, cpu: int) -> int:
        """The NUMA node of a CPU; 0 if unknown."""
        return next((node for node, cpus in self.nodes.items() if cpu in cpus), 0)


def parse_numbers(text: str) -> list[int]:
    """Parse a list such as ``0-3,8`` into sorted, unique numbers.

    Raises:
        ValueError: *text* is not such a list.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        # Five digits: Linux supports at most 8192 CPUs, and the range is expanded before it is checked against the
        # grant.
        match = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part, re.ASCII)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ValueError(f"{text[:80]!r} is not a list of numbers such as '0-3,8'")
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return sorted(numbers)


def render_numbers(numbers: Iterable[int]) -> str:
    """Render numbers as `parse_numbers` reads them."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)


def shares(cpus: Sequence[int], owned_gpus: Sequence[Sequence[str]], topology: Topology) -> list[list[int]]:
    """Divide the granted *cpus* among the procs of a host: disjoint, and equal to within one core.

    Procs share no core if there are enough cores. A share's CPUs are neighbours in the order of NUMA nodes; if all
    procs have a GPU, the shares are assigned in the order of the GPUs' nodes. With one proc, or fewer CPUs than procs,
    all shares are empty, which leaves the procs unbound.

    Args:
        owned_gpus: for each proc, the GPUs that it sees, its own first.
    """
    num = len(owned_gpus)
    if num < 2 or len(cpus) < num:
        return [[] for _ in range(num)]
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        cores.setdefault((topology.node_of(cpu), topology.cores.get(cpu, cpu)), []).append(cpu)
    units = [cores[key] for key in sorted(cores)]
    if len(units) < num:
        units = [[cpu] for unit in units for cpu in unit]
    blocks = [
        sorted(cpu for unit in units[i * len(units) // num : (i + 1) * len(units) // num] for cpu in unit)
        for i in range(num)
    ]
    preferred = [topology.gpu_nodes.get(gpus[0]) if gpus else None for gpus in owned_gpus]
    if None in preferred:
        return blocks
    dealt: list[list[int]] = [[] for _ in range(num)]
    for block, proc in zip(blocks, sorted(range(num), key=lambda proc: (preferred[proc], proc)), strict=True):
        dealt[proc] = block
    return dealt


def threads_of_each(num_cpus: int, per_host: int, num_sharing: int) -> int:
    """The number of threads that each proc of a host may compute with; 0, which leaves it open, if it is alone.

    Args:
        num_cpus: number of CPUs granted to the host.
        per_host: number of procs that the mesh has on each host.
        num_sharing: number of hosts that have these CPUs.
    """
    num_procs = per_host * num_sharing
    return max(1, num_cpus // num_procs) if num_procs > 1 else 0


def check_bindings(bindings: Sequence[Mapping[str, str]], per_host: int, granted: Mapping[str, Sequence[int]]) -> None:
    """Check a user's bindings as far as is possible before hosts are asked.

    Args:
        granted: CPUs granted to each host, by its name.

    Raises:
        ValueError: not one binding for each proc of a host, an unknown key, or a CPU that was not granted.
    """
    if len(bindings) != per_host:
        raise ValueError(f"proc_bind has {len(bindings)} entries, and there are {per_host} procs on each host")
    for index, binding in enumerate(bindings):
        where = f"proc_bind[{index}]"
        unknown = sorted(set(binding) - set(KEYS))
        if unknown:
            raise ValueError(f"{where} has no key {unknown[0]!r}; known: {', '.join(KEYS)}")
        for key in binding:
            _numbers(where, key, binding[key], ())
        for key in _CPU_KEYS:
            for host, cpus in granted.items() if key in binding else ():
                _check_known(where, key, _numbers(where, key, binding[key], cpus), cpus, f"CPUs granted on {host}")


def given_bindings(bindings: Sequence[Mapping[str, str]], cpus: Sequence[int], topology: Topology) -> list[Binding]:
    """Resolve a user's bindings on this host.

    Raises:
        ValueError: an unknown NUMA node, or no granted CPU is left for a proc.
    """
    nodes = topology.nodes or {0: list(cpus)}
    found = []
    for index, binding in enumerate(bindings):
        where = f"proc_bind[{index}]"
        wanted: set[int] | None = None
        for key in _CPU_KEYS:
            if key in binding:
                chosen = _numbers(where, key, binding[key], cpus)
                _check_known(where, key, chosen, cpus, "CPUs granted here")
                wanted = set(chosen) if wanted is None else wanted & set(chosen)
        if "cpunodebind" in binding:
            chosen = _numbers(where, "cpunodebind", binding["cpunodebind"], nodes)
            _check_known(where, "cpunodebind", chosen, nodes, "NUMA nodes here")
            near = {cpu for node in chosen for cpu in nodes[node]} & set(cpus)
            wanted = near if wanted is None else wanted & near
        if wanted is not None and not wanted:
            raise ValueError(f"{where} {dict(binding)} leaves no CPU of those granted here: {render_numbers(cpus)}")
        memory_nodes: list[int] = []
        if "membind" in binding:
            memory_nodes = _numbers(where, "membind", binding["membind"], nodes)
            _check_known(where, "membind", memory_nodes, nodes, "NUMA nodes here")
        found.append(Binding(sorted(wanted or ()), memory_nodes))
    return found


def _numbers(where: str, key: str, text: str, everything: Iterable[int]) -> list[int]:
    if text == "all":
        return sorted(everything)
    try:
        return parse_numbers(text)
    except ValueError as error:
        raise ValueError(f"{where}[{key!r}]: {error}, or 'all'") from error


def _check_known(where: str, key: str, chosen: Sequence[int], known: Iterable[int], what: str) -> None:
    missing = sorted(set(chosen) - set(known))
    if missing:
        raise ValueError(f"{where}[{key!r}] asks for {render_numbers(missing)}; {what}: {render_numbers(known)}")


def read_topology(sys_dir: Path = Path("/sys"), proc_dir: Path = Path("/proc")) -> Topology:
    """Read this machine's topology; what the kernel does not report is left out."""
    nodes: dict[int, list[int]] = {}
    for path in (sys_dir / "devices/system/node").glob("node[0-9]*/cpulist"):
        nodes[int(path.parent.name.removeprefix("node"))] = _read_numbers(path)
    cores: dict[int, int] = {}
    for path in (sys_dir / "devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list"):
        siblings = _read_numbers(path)
        if siblings:
            cores[int(path.parent.parent.name.removeprefix("cpu"))] = siblings[0]
    gpu_nodes: dict[str, int] = {}
    for path in (proc_dir / "driver/nvidia/gpus").glob("*/information"):
        try:
            text = path.read_text(errors="replace")
            node = int((sys_dir / "bus/pci/devices" / path.parent.name.lower() / "numa_node").read_text())
        except (OSError, ValueError):
            continue
        for name in re.findall(r"^(?:GPU UUID|Device Minor):\s*(\S+)", text, re.MULTILINE):
            if node >= 0:  # -1: unknown to the firmware
                gpu_nodes[name] = node
    return Topology(dict(sorted(nodes.items())), cores, gpu_nodes)


def _read_numbers(path: Path) -> list[int]:
    try:
        return parse_numbers(path.read_text().strip())
    except (OSError, ValueError):
        return []  # a node without CPUs has an empty list


def apply(cpus: Sequence[int], memory_nodes: Sequence[int]) -> None:
    """Bind this process, which must have one thread.

    Raises:
        OSError: the kernel refuses; the text names the CPUs or nodes.
    """
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            raise OSError(error.errno, f"cannot run on CPUs {render_numbers(cpus)}: {error.strerror}") from error
    if memory_nodes:
        _bind_memory(memory_nodes)


def _bind_memory(nodes: Sequence[int]) -> None:
    number = _SET_MEMPOLICY.get(os.uname().machine)
    what = f"cannot take memory from NUMA nodes {render_numbers(nodes)}"
    if number is None:
        raise OSError(0, f"{what}: not supported on {os.uname().machine}")
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    words = (ctypes.c_ulong * (max(nodes) // bits + 1))()
    for node in nodes:
        words[node // bits] |= 1 << node % bits
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel reads one bit fewer than maxnode.
    if libc.syscall(ctypes.c_long(number), _MPOL_BIND, words, ctypes.c_ulong(len(words) * bits + 1)):
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")
