"""Connects controllers and commands to the head of an allocation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from monarch_hpc.allocation.files import ended_path, read_key
from monarch_hpc.allocation.ready import Ready, check_allocation
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config.schema import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ConfigError, TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.core.machine.interfaces import choose_interfaces, raise_file_limit, read_interfaces
from monarch_hpc.transport.api import FrameChannel, Listener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.frames import Frame, Kind

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx.fabric import UcxFabric

__all__ = ["Attachment", "attach", "join", "load_fabrics"]


@dataclass(frozen=True, slots=True)
class Attachment:
    """A process's node in an allocation, with its channel to the head, and the allocation's configuration."""

    ready: Ready
    config: Config
    node: Node
    channel: FrameChannel

    def send(self, message: Message) -> None:
        """Send a control message to the head.

        Raises:
            TransportError: the channel is closed.
        """
        self.channel.send(Frame(Kind.CONTROL, body=encode(message)))


def attach(
    directory: Path, role: Role, listener: Listener, engine: Engine, timeout_s: float | None = None
) -> Attachment:
    """Connect to the head of the allocation in *directory*.

    Args:
        listener: receives frames and the ends of channels, and must close the attachment's node.
        engine: a started engine.
        timeout_s: longest wait for the head; None for as long as all routes to it may take.

    Raises:
        AllocationError: the allocation has ended, or its agents are not ready.
        VersionMismatch: the two sides run incompatible versions.
        PeerLost: the head does not answer.
        AuthenticationError: another process answers at the head's address.
    """
    ready = check_allocation(directory)
    identity = Identity(ready.allocation, role, os.uname().nodename, new_incarnation())
    config = read_config(directory)
    node = Node(engine, identity, b"", listener, config.transport)
    try:
        return _join(node, directory, ready, config, timeout_s)
    except BaseException:
        node.close("the head cannot be reached")
        raise


def join(node: Node, directory: Path, timeout_s: float | None = None) -> Attachment:
    """Connect *node*, which may belong to other allocations, to the head of the allocation in *directory*.

    Raises:
        AllocationError, AuthenticationError, PeerLost, VersionMismatch: as `attach`; the node is as it was.
    """
    return _join(node, directory, check_allocation(directory), read_config(directory), timeout_s)


def load_fabrics(config: Config) -> None:
    """Load the modules of the fabrics that a program with this configuration opens in `join`."""
    if _wants_ucx(config):
        from monarch_hpc.transport.ucx import fabric  # noqa: F401 late: tools never use UCX


def _join(node: Node, directory: Path, ready: Ready, config: Config, timeout_s: float | None) -> Attachment:
    key = read_key(directory)
    engine, role = node.engine, node.identity.role
    relay = None
    job_id = ready.job_of(ready.head)
    if job_id is not None and "relay" in config.fabric.order:
        from monarch_hpc.attach.slurm_relay import SlurmRelay  # late: it imports the Slurm modules

        host, python, component = ready.head_name, config.agent.python, ready.component_of(ready.head)
        ended, hosts = ended_path(directory), _listen_hosts(config) if config.fabric.dial_back else []
        relay = SlurmRelay(engine, job_id, host, python, ended, component, hosts, config.fabric.port_range)
    if role is Role.CONTROLLER:
        raise_file_limit()
        node.own_memory.cross_memory.use(config.fabric.order)
        node.own_memory.devices.use(config.rdma.staged)
    with_ucx = role is Role.CONTROLLER and _wants_ucx(config)
    if with_ucx:
        node.use_fabric(lambda: _open_ucx(engine, config, ready))
    node.join(ready.allocation, key, relay=relay, forwarders=ready.addresses, with_fabric=with_ucx)
    try:
        channel = node.connect(ready.addresses, timeout_s=timeout_s, allocation=ready.allocation)
    except TransportError:
        node.leave(ready.allocation, "the head cannot be reached")
        raise
    return Attachment(ready, config, node, channel)


def _listen_hosts(config: Config) -> list[str]:
    """Addresses of this machine that hosts may be able to connect to; none if the configured ones are missing."""
    try:
        return list(
            choose_interfaces(read_interfaces(), config.fabric.interfaces.login, local=False, side="login").values()
        )
    except ConfigError:
        return []


def _wants_ucx(config: Config) -> bool:
    from monarch_hpc.transport.ucx.settings import wants_ucx  # late: tools never use UCX

    return wants_ucx(config.fabric)


def _open_ucx(engine: Engine, config: Config, ready: Ready) -> UcxFabric:
    from monarch_hpc.agent.resources.shm_folder import make_own_segments, remove_own_segments  # late, as above
    from monarch_hpc.transport.ucx.fabric import UcxFabric

    # Manually started workers are not a Slurm job, and may be other machines.
    local = ready.job_id is None and all("//127." in address for address in ready.addresses)
    login = not local and os.uname().nodename not in ready.names.values()
    wanted = config.fabric.interfaces.login if login else config.fabric.interfaces.compute
    # Not the folder of the allocation's agents: the program may go on when that is gone.
    segments, held = make_own_segments()
    return UcxFabric(
        engine,
        config.fabric,
        config.ucx,
        login=login,
        interfaces=list(
            choose_interfaces(read_interfaces(), wanted, local=local, side="login" if login else "compute")
        ),
        max_frame_bytes=config.transport.max_frame_bytes,
        segments=segments,
        closed=lambda: remove_own_segments(segments, held),
    )
