"""The start order of procs, and the variables that mark their environment."""

from __future__ import annotations

import dataclasses
import json
import signal
from dataclasses import field

from monarch_hpc.config.schema import (
    FabricConfig,
    LogsConfig,
    ProcsConfig,
    RdmaConfig,
    TransportConfig,
    UcxConfig,
    as_document,
    from_document,
)
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.ids import MAX_RUN_CHARS
from monarch_hpc.wire.proc_key import ProcKey

__all__ = [
    "COOKIE",
    "DEFAULT_ENTRY",
    "HOST_COOKIE",
    "MESH_COOKIE",
    "NO_MESH",
    "NO_RUN",
    "RUN_COOKIE",
    "STOP_ORDERED",
    "TERMINATED",
    "ProcOrder",
    "ProcStart",
    "parse_order",
    "render_order",
]

DEFAULT_ENTRY = "monarch_hpc.mesh.process:main"
"""Entry point of procs, by name: agents do not depend on actors."""

COOKIE = "MONARCH_HPC_COOKIE"
"""Environment variable of all procs and their children: the allocation."""

HOST_COOKIE = "MONARCH_HPC_HOST"
"""Environment variable: the rank of the host; in a local allocation several hosts are one machine."""

RUN_COOKIE = "MONARCH_HPC_RUN_COOKIE"
"""Environment variable: the run."""

MESH_COOKIE = "MONARCH_HPC_MESH"
"""Environment variable: the number of the mesh in its run; what kept procs started is spared at the run's end."""

NO_RUN = "0" * MAX_RUN_CHARS
"""Placeholder for a run in the zygote's own environment, overwritten in each proc; padded with NUL bytes."""

NO_MESH = "0" * len(str(1 << 63))
"""Likewise for a mesh."""

TERMINATED = "terminated"
"""File in the host's folder for shared memory, made by an agent that got SIGTERM. Slurm may send the signal to all
processes of a job, but procs end when their agent says so."""

STOP_ORDERED = signal.SIGURG
"""Signal that the agent sends a proc beside SIGTERM, to tell its own from Slurm's. It is ignored without a handler."""

_Section = (
    type[ProcsConfig]
    | type[TransportConfig]
    | type[FabricConfig]
    | type[UcxConfig]
    | type[RdmaConfig]
    | type[LogsConfig]
)

_SECTIONS: dict[str, _Section] = {
    "procs": ProcsConfig,
    "limits": TransportConfig,
    "fabric": FabricConfig,
    "ucx": UcxConfig,
    "rdma": RdmaConfig,
    "logs": LogsConfig,
}
"""The sections of the configuration in a `ProcStart`."""


@dataclass(frozen=True, slots=True)
class ProcStart:
    """Everything that a proc needs to start.

    Args:
        rank: rank in its mesh of *num_ranks* procs.
        local_rank: index among the *per_host* procs of its mesh on this host.
        host_rank: the host's position in the allocation.
        listen_hosts: IP addresses to listen on.
        gpus: the GPUs it sees, its own first unless configured otherwise.
        hello_fd: pipe to which it writes one encoded `ProcHello` and a line feed, and then closes it.
        record_fd: memory to record into, see `telemetry.recorder`.
        spin_s: how long its engine may spin.
        agent: addresses of the agent of this host.
        forwarders: addresses of the head's agent, which forwards to procs that cannot be dialled.
        interfaces: names of the network interfaces of *listen_hosts*.
        segments: folder for shared memory; may be empty.
        cpus: CPUs to run on; empty for all that the agent may use.
        memory_nodes: NUMA nodes to take memory from; empty for any.
        num_threads: value of OMP_NUM_THREADS unless the user sets it; 0 leaves it unchanged.
        slurm: Slurm's names of job, step and node, see `core.ids.SlurmIds`.
        python: the requested interpreter; empty for the agent's own.
        restarts: number of earlier procs of its rank, see `wire.control.procs.SpawnProcs`.
    """

    allocation: str
    run: str
    mesh: int
    rank: int
    num_ranks: int
    local_rank: int
    per_host: int
    host_rank: int
    host_name: str
    key: bytes
    listen_hosts: list[str]
    gpus: list[str]
    hello_fd: int
    record_fd: int
    spin_s: float
    agent: list[str]
    forwarders: list[str]
    interfaces: list[str]
    segments: str
    procs: ProcsConfig
    limits: TransportConfig
    fabric: FabricConfig
    ucx: UcxConfig
    rdma: RdmaConfig
    logs: LogsConfig
    cpus: list[int] = field(default_factory=list)
    memory_nodes: list[int] = field(default_factory=list)
    num_threads: int = 0
    slurm: dict[str, str] = field(default_factory=dict)
    python: str = ""
    restarts: int = 0

    @property
    def proc(self) -> ProcKey:
        """The proc's key."""
        return ProcKey(self.run, self.mesh, self.rank, self.host_rank)


@dataclass(frozen=True, slots=True)
class ProcOrder:
    """The procs of one mesh on one host, as ordered from the zygote.

    Args:
        starts: one for each proc; the zygote fills in their `hello_fd` and `record_fd`.
        environment: variables that replace or extend the agent's.
        sys_path: the controller's import path.
        cwd: the controller's working directory; used where it exists.
        umask: the controller's file mode mask, so that files of actors are as open as the user wants.
        gpu_variable: the variable that carries `ProcStart.gpus`.
        unset: variables of the agent that procs must not inherit.
        in_step: whether the procs are tasks of a separate step, which MPI must see.
    """

    starts: list[ProcStart]
    environment: dict[str, str]
    sys_path: list[str]
    cwd: str
    umask: int
    gpu_variable: str
    unset: list[str] = field(default_factory=list)
    in_step: bool = False


def render_order(order: ProcOrder) -> dict[str, object]:
    """Return *order* as plain data for JSON."""
    starts = [
        {
            **{field.name: getattr(start, field.name) for field in dataclasses.fields(start)},
            "key": start.key.hex(),
            **{name: as_document(getattr(start, name)) for name in _SECTIONS},
        }
        for start in order.starts
    ]
    return {**{field.name: getattr(order, field.name) for field in dataclasses.fields(order)}, "starts": starts}


def parse_order(text: str | bytes) -> ProcOrder:
    """Read what `render_order` rendered, as JSON. Both ends are ours and of one version, so it is not checked."""
    document = json.loads(text)
    for start in document["starts"]:
        start["key"] = bytes.fromhex(start["key"])
        for name, section in _SECTIONS.items():
            start[name] = from_document(section, start[name], "the agent's order")
    document["starts"] = [ProcStart(**start) for start in document["starts"]]
    return ProcOrder(**document)
