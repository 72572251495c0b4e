"""Connects controllers and commands to the head of an allocation."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

from monarch_hpc.allocation.files import ended_path, read_key
from monarch_hpc.allocation.ready import Ready, check_allocation
from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config.schema import Config
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import AllocationError, ConfigError, TransportError
from monarch_hpc.core.ids import Identity, Role, new_incarnation
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.interfaces import choose_interfaces, raise_file_limit, read_interfaces
from monarch_hpc.transport.api import FrameChannel, Listener
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.control.allocation import (
    DrainHost,
    FreeHosts,
    HostsFreed,
    ShutDown,
    ShutDownDone,
    Status,
    StatusReport,
)
from monarch_hpc.wire.control.message import Message, encode, make, parse
from monarch_hpc.wire.control.questions import Ask, Rows
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.tables.schema import Table

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx.fabric import UcxFabric

__all__ = [
    "Asker",
    "Attachment",
    "HeadClient",
    "HeadStatus",
    "TableAnswer",
    "ask",
    "attach",
    "drain_host",
    "free_hosts",
    "join",
    "query_portions",
    "query_rows",
    "query_status",
    "shut_down",
]

R = TypeVar("R")

_DIAL_S = 4.0
"""Beyond the head's own timeout, how long connecting to it may take: the relay needs a second and an srun."""

_CONNECT_S = 15.0
"""Longest wait for the connection, however long answers may take."""

_ANSWER_S = 12.0
"""Beyond the procs' grace, how long a head may take to shut an allocation down; its agents have earlier deadlines."""

_log = Logger(__name__)


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
    identity = Identity(ready.allocation, role, os.uname().nodename, new_incarnation())
    node = Node(engine, identity, b"", listener, read_config(directory).transport)
    try:
        return join(node, directory, timeout_s)
    except BaseException:
        node.close("the head cannot be reached")
        raise


def join(node: Node, directory: Path, timeout_s: float | None = None) -> Attachment:
    """Connect *node*, which may belong to other allocations, to the head of the allocation in *directory*.

    Raises:
        AllocationError, AuthenticationError, PeerLost, VersionMismatch: as `attach`; the node is as it was.
    """
    ready = check_allocation(directory)
    key = read_key(directory)
    config = read_config(directory)
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
    return Attachment(ready, node, channel)


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


class HeadStatus(TypedDict):
    """A head's `StatusReport`, with the fabric of the link to it and the reason: `transport.api.Channel.fabric`."""

    hosts: list[dict[str, object]]
    runs: list[dict[str, object]]
    kept: list[dict[str, object]]
    idle_left_s: float
    link: str
    link_why: str


def query_status(head: Path | HeadClient, timeout_s: float) -> HeadStatus | None:
    """Request the status report of a head, see `ask`; None if it cannot be reached in time."""
    return _ask_status(head, Status(), timeout_s)


def drain_host(directory: Path, host: str, reason: str, timeout_s: float) -> HeadStatus | None:
    """Take a host of an allocation out of use, or back into use if *reason* is empty; answers as `query_status`."""
    return _ask_status(directory, DrainHost(host, reason), timeout_s)


def _ask_status(head: Path | HeadClient, question: Message, timeout_s: float) -> HeadStatus | None:
    answer, link, why = ask(head, question, StatusReport, timeout_s)
    if not isinstance(answer, StatusReport):
        return None
    return HeadStatus(
        hosts=answer.hosts,
        runs=answer.runs,
        kept=answer.kept,
        idle_left_s=answer.idle_left_s,
        link=link,
        link_why=why,
    )


@dataclass(frozen=True, slots=True)
class TableAnswer(Generic[R]):
    """The rows of all processes of an allocation that answered; see `wire.control.questions.Rows`.

    Attributes:
        cut: processes of whose rows only the latest are there, in words.
    """

    rows: list[R]
    missing: list[str]
    left_out: list[str]
    cut: list[str]


def query_rows(
    head: Path | HeadClient, table: Table[R], timeout_s: float, where: Mapping[str, object] | None = None
) -> TableAnswer[R] | None:
    """Request a table's rows of every process of the allocation; None if the head cannot be reached in time.

    Args:
        timeout_s: how long the head waits for hosts and programs; the answer names the late ones.
        where: values by column: other rows are not wanted.

    Raises:
        FrameError: a process answered with something else than rows of *table*.
    """
    answer = query_portions(head, table.name, timeout_s, where)
    if answer is None:
        return None
    rows = [row for portion in answer.portions for row in table.read(portion.rows)]
    return TableAnswer(rows, answer.missing, answer.left_out, [one.source for one in answer.portions if one.cut])


def query_portions(
    head: Path | HeadClient, table: str, timeout_s: float, where: Mapping[str, object] | None = None, pieces: str = ""
) -> Rows | None:
    """Return the answer for `query_rows` as it came, with rows as text; None if the head cannot be reached in time.

    Args:
        pieces: a question in SQL that hosts answer, see `wire.tables.pieces`.
    """
    question = Ask(0, table, dict(where or {}), timeout_s, pieces=pieces)
    answer, _, _ = ask(head, question, Rows, timeout_s + _DIAL_S)
    return answer if isinstance(answer, Rows) else None


def shut_down(directory: Path, timeout_s: float) -> dict[str, int] | None:
    """Shut down all procs and agents of an allocation.

    Args:
        timeout_s: time between SIGTERM and SIGKILL of procs.

    Returns:
        The number of processes left on each host, -1 where it is unknown; None if the head cannot be reached.
    """
    answer, _, _ = ask(directory, ShutDown(timeout_s), ShutDownDone, timeout_s + _ANSWER_S)
    return dict(answer.left) if isinstance(answer, ShutDownDone) else None


def free_hosts(directory: Path, ranks: Sequence[int], timeout_s: float) -> dict[str, int] | None:
    """End all procs and the agents on some hosts of an allocation, which goes on without them.

    Args:
        ranks: the hosts; not the head's.
        timeout_s: time between SIGTERM and SIGKILL of procs.

    Returns:
        As `shut_down`, for these hosts.
    """
    answer, _, _ = ask(directory, FreeHosts(list(ranks), timeout_s), HostsFreed, timeout_s + _ANSWER_S)
    return dict(answer.left) if isinstance(answer, HostsFreed) else None


class Asker:
    """A listener that waits for one answer.

    Args:
        wanted: what is an answer: no other message is looked at, but a refusal.

    Attributes:
        answer: the answer; None if there is none, or the head has refused.
        lost: why the head is gone; empty if it has answered.
        over: set once there is no more to wait for.
    """

    def __init__(self, engine: Engine, *wanted: type[Message]) -> None:
        self._wanted = {cls.__name__: cls for cls in wanted}
        self.answer: Message | None = None
        self.lost = ""
        self.over = Flag(engine)

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: tools do not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Store the answer."""
        name, fields = parse(frame.body)
        if name in self._wanted:
            self.answer = make(self._wanted[name], fields)
            self.over.set()
        elif name == Refused.__name__:
            refused = make(Refused, fields)
            _log.warning("the head refused %s: %s", refused.request, refused.problem)
            self.over.set()

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """Stop waiting: no answer will come."""
        self.lost = str(error)
        self.over.set()


class HeadClient:
    """A tool's channel to the head of an allocation, for one question after the other; the first one opens it.

    Args:
        directory: the allocation's.

    Attributes:
        fabric, why: the fabric of the channel, and the reason for it; empty while there is none.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fabric = self.why = ""
        self._engine: Engine | None = None
        self._attachment: Attachment | None = None
        self._asker: Asker | None = None

    def ask(self, question: Message, wanted: type[Message], timeout_s: float) -> Message | None:
        """Ask the head; None if it refuses the question, or cannot be reached in time."""
        if self._engine is None:
            self._engine = Engine()
            self._engine.start()
        asker = self._asker = Asker(self._engine, wanted)
        try:
            if self._attachment is None:
                self._attachment = attach(self.directory, Role.TOOL, self, self._engine, min(timeout_s, _CONNECT_S))
                self.fabric, self.why = self._attachment.channel.fabric, self._attachment.channel.why
            self._attachment.send(question)
            is_over = asker.over.wait(timeout_s)
        except (AllocationError, ConfigError, TransportError, OSError):
            is_over = False
        if not is_over or asker.lost:
            self._leave()  # an answer that comes late must not be taken for the next one
        return asker.answer

    def on_channel(self, channel: FrameChannel) -> None:
        """Do nothing: tools do not listen."""

    def on_frame(self, channel: FrameChannel, frame: Frame) -> None:
        """Pass an answer on to the question."""
        if self._asker is not None:
            self._asker.on_frame(channel, frame)

    def on_lost(self, channel: FrameChannel, error: TransportError) -> None:
        """End the question: no answer will come."""
        if self._asker is not None:
            self._asker.on_lost(channel, error)

    def _leave(self) -> None:
        if self._attachment is not None:
            self._attachment.node.close("the questions are answered")
            self._attachment = None

    def close(self) -> None:
        """Close the channel."""
        self._leave()
        if self._engine is not None:
            self._engine.close()
            self._engine = None


def ask(
    head: Path | HeadClient, question: Message, wanted: type[Message], timeout_s: float
) -> tuple[Message | None, str, str]:
    """Ask a head, that of an allocation's directory or one to which there is a channel.

    Returns:
        The answer, None if the head refuses the question or cannot be reached in time; the fabric of the channel, and
        the reason for that fabric.
    """
    if isinstance(head, HeadClient):
        return head.ask(question, wanted, timeout_s), head.fabric, head.why
    with contextlib.closing(HeadClient(head)) as client:
        return client.ask(question, wanted, timeout_s), client.fabric, client.why
