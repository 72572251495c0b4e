"""Connects controllers and commands to the head of an allocation."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from monarch_hpc.agent.resources.shm_folder import find_segments
from monarch_hpc.allocation.files import ended_path, read_key
from monarch_hpc.allocation.ready import Ready, check_allocation
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config.schema import Config
from monarch_hpc.core.errors import AllocationError, ConfigError, TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.interfaces import choose_interfaces, raise_file_limit, read_interfaces
from monarch_hpc.transport.api import FrameChannel, Listener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.node import Node
from monarch_hpc.transport.ucx.fabric import UcxFabric
from monarch_hpc.transport.ucx.settings import wants_ucx
from monarch_hpc.wire.control.allocation import ShutDown, ShutDownDone, Status, StatusReport
from monarch_hpc.wire.control.calls import Calls, CallsReport
from monarch_hpc.wire.control.message import Message, encode
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.table import decode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["Attachment", "HeadStatus", "attach", "query_calls", "query_status", "shut_down"]

_DIAL_S = 4.0
"""Beyond the head's own timeout, how long connecting to it may take: the relay needs a second and an srun."""

_ANSWER_S = 12.0
"""Beyond the procs' grace, how long a head may take to shut an allocation down; its agents have earlier deadlines."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A process's node in an allocation, and its channel to the head."""

    ready: Ready
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
    key = read_key(directory)
    config = read_config(directory)
    relay = None
    if ready.job_id is not None and "relay" in config.fabric.order:
        from monarch_hpc.attach.slurm_relay import SlurmRelay  # late: it imports the Slurm modules

        relay = SlurmRelay(engine, ready.job_id, ready.names[0], config.agent.python, ended_path(directory))
    identity = Identity(ready.allocation, role, platform.node(), new_incarnation())
    if role is Role.CONTROLLER:
        raise_file_limit()
    fabric = _open_ucx(engine, config, ready) if role is Role.CONTROLLER and wants_ucx(config.fabric) else None
    node = Node(engine, identity, key, listener, config.transport, relay, forwarders=ready.addresses, fabric=fabric)
    try:
        return Attachment(ready, node, node.connect(ready.addresses, timeout_s=timeout_s))
    except TransportError:
        node.close("the head cannot be reached")
        raise


def _open_ucx(engine: Engine, config: Config, ready: Ready) -> UcxFabric:
    # Manually started workers are not a Slurm job, and may be other machines.
    local = ready.job_id is None and all("//127." in address for address in ready.addresses)
    own_ranks = [rank for rank, name in ready.names.items() if local or name == platform.node()]
    login = not own_ranks
    wanted = config.fabric.interfaces.login if login else config.fabric.interfaces.compute
    return UcxFabric(
        engine,
        config.fabric,
        config.ucx,
        login=login,
        interfaces=list(
            choose_interfaces(read_interfaces(), wanted, local=local, side="login" if login else "compute")
        ),
        max_frame_bytes=config.transport.max_frame_bytes,
        segments="" if login else find_segments(ready.allocation, own_ranks[0]),
    )


_log = Logger(__name__)


class HeadStatus(TypedDict):
    """A head's status report, with the fabric of the link to it and the reason: `transport.api.Channel.fabric`."""

    hosts: list[dict[str, object]]
    runs: list[dict[str, object]]
    link: str
    link_why: str


def query_status(directory: Path, timeout_s: float) -> HeadStatus | None:
    """Request the head's status report; None if the head cannot be reached in time."""
    answer, link, why = _ask(directory, Status(), StatusReport, timeout_s)
    if not isinstance(answer, StatusReport):
        return None
    return HeadStatus(hosts=answer.hosts, runs=answer.runs, link=link, link_why=why)


def query_calls(directory: Path, timeout_s: float) -> CallsReport | None:
    """Request the calls of every process of the allocation; None if the head cannot be reached in time.

    Args:
        timeout_s: how long the head waits for hosts and programs; the report names the late ones.
    """
    answer, _, _ = _ask(directory, Calls(0, timeout_s), CallsReport, timeout_s + _DIAL_S)
    return answer if isinstance(answer, CallsReport) else None


def shut_down(directory: Path, timeout_s: float) -> dict[str, int] | None:
    """Shut down all procs and agents of an allocation.

    Args:
        timeout_s: time between SIGTERM and SIGKILL of procs.

    Returns:
        The number of processes left on each host, -1 where it is unknown; None if the head cannot be reached.
    """
    answer, _, _ = _ask(directory, ShutDown(timeout_s), ShutDownDone, timeout_s + _ANSWER_S)
    return dict(answer.left) if isinstance(answer, ShutDownDone) else None


class _Asker:
    """A listener that waits for one answer."""

    def __init__(self, engine: Engine, wanted: type[Message]) -> None:
        self._wanted = wanted
        self.answer: Message | None = None
        self.over = Flag(engine)

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: tools do not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Store the answer."""
        message = decode(frame.body)
        if isinstance(message, self._wanted):
            self.answer = message
            self.over.set()
        elif isinstance(message, Refused):
            _log.warning("the head refused %s: %s", message.request, message.problem)
            self.over.set()

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Stop waiting: no answer will come."""
        self.over.set()


def _ask(
    directory: Path, question: Message, wanted: type[Message], timeout_s: float
) -> tuple[Message | None, str, str]:
    """Return the answer, the fabric of the link, and the reason for that fabric."""
    link = why = ""
    engine = Engine()
    engine.start()
    asker = _Asker(engine, wanted)
    try:
        attachment = attach(directory, Role.TOOL, asker, engine, timeout_s)
        link, why = attachment.channel.fabric, attachment.channel.why
        attachment.send(question)
        asker.over.wait(timeout_s)
        attachment.node.close("the question is answered")
    except (AllocationError, ConfigError, TransportError, OSError):
        return None, link, why
    finally:
        engine.close()
    return asker.answer, link, why
