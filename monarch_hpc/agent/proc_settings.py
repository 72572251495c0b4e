"""Settings of an agent that it also passes to its procs."""

from __future__ import annotations

from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.config.schema import FabricConfig, LogsConfig, ProcsConfig, RecordingConfig, TransportConfig, UcxConfig
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.ids import SlurmIds
from monarch_hpc.supervision.lease import Lease

__all__ = ["ProcSettings"]


@dataclass(frozen=True, slots=True)
class ProcSettings:
    """The identity of an agent's host, and the settings of its procs.

    Args:
        listen_hosts: IP addresses for procs to listen on.
        heartbeat_s: seconds between two checks of the procs' state.
        lease: how long a proc may be stopped by a signal.
        addresses: listening addresses of the agent.
        segments: folder for shared memory; may be empty.
        forwarders: addresses of the head's agent; filled in when known.
        slurm: Slurm's identifiers of the agent.
    """

    allocation: str
    rank: int
    name: str
    key: bytes
    grant: Grant
    listen_hosts: list[str]
    heartbeat_s: float
    lease: Lease
    addresses: list[str]
    segments: str
    forwarders: list[str]
    telemetry: RecordingConfig
    procs: ProcsConfig
    limits: TransportConfig
    fabric: FabricConfig
    ucx: UcxConfig
    slurm: SlurmIds
    logs: LogsConfig
