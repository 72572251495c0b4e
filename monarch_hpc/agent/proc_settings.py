"""Settings of an agent that it also passes to its procs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from monarch_hpc.agent.agent_args import AgentArgs
from monarch_hpc.agent.resources.grant import Grant
from monarch_hpc.config import Config
from monarch_hpc.config.schema import (
    FabricConfig,
    LogsConfig,
    ProcsConfig,
    RdmaConfig,
    RecordingConfig,
    TransportConfig,
    UcxConfig,
)
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.ids import SlurmIds
from monarch_hpc.supervision.liveness import Lease

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
        environment: the agent's, for its helper.
        directory: the allocation's directory.
        owns_job: see `AgentArgs.owns_job`.
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
    rdma: RdmaConfig
    slurm: SlurmIds
    logs: LogsConfig
    environment: Mapping[str, str]
    directory: Path
    owns_job: bool

    @classmethod
    def of(
        cls,
        args: AgentArgs,
        config: Config,
        grant: Grant,
        addresses: list[str],
        listen_hosts: list[str],
        segments: str,
        forwarders: list[str],
    ) -> Self:
        """The settings of an agent that was started with *args*."""
        return cls(
            allocation=args.allocation,
            rank=args.rank,
            name=args.name,
            key=args.key,
            grant=grant,
            listen_hosts=listen_hosts,
            heartbeat_s=config.liveness.heartbeat_s,
            lease=Lease(config.liveness.suspect_s, config.liveness.dead_s),
            addresses=addresses,
            segments=segments,
            forwarders=forwarders,
            telemetry=config.telemetry,
            procs=config.procs,
            limits=config.transport,
            fabric=config.fabric,
            ucx=config.ucx,
            rdma=config.rdma,
            slurm=SlurmIds.of(args.environment),
            logs=config.logs,
            environment=args.environment,
            directory=args.directory,
            owns_job=args.owns_job,
        )
