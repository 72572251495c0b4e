"""What an agent knows of its place in the allocation, and hands on to its procs."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.config.schema import FabricConfig, LogsConfig, TransportConfig, UcxConfig
from monarch_hpc.core.ids import SlurmIds
from monarch_hpc.supervision.lease import Lease

__all__ = ["ProcSettings"]


@dataclass(frozen=True, slots=True)
class ProcSettings:
    """Where an agent is and what it hands on to its procs.

    Args:
        listen_hosts: IP addresses that procs listen on.
        stop_s: between SIGTERM and SIGKILL of a proc whose run ends.
        heartbeat_s: between two looks at the procs' state.
        lease: how long a proc may be stopped by a signal.
        keep_dead: of how many procs that died the records are kept.
        addresses: where the agent listens.
        segments: folder for shared memory; may be empty.
        forwarders: addresses of the head's agent; filled in when they are known.
        slurm: what Slurm calls the agent.
    """

    allocation: str
    rank: int
    name: str
    key: bytes
    grant: Grant
    listen_hosts: list[str]
    stop_s: float
    heartbeat_s: float
    lease: Lease
    addresses: list[str]
    segments: str
    forwarders: list[str]
    keep_dead: int
    limits: TransportConfig
    fabric: FabricConfig
    ucx: UcxConfig
    slurm: SlurmIds
    logs: LogsConfig
