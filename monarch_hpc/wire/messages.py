"""Control messages between controller, head, agents and procs: frozen dataclasses, encoded as JSON.

Plain data on purpose: agents and the command line never unpickle what users sent. Each message names its run, so that
the head can forward it without understanding it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from dataclasses import dataclass, field

from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.document import build

__all__ = [
    "MAX_PROCS_PER_HOST",
    "CloseRun",
    "HostEntry",
    "HostLost",
    "Join",
    "Message",
    "OpenRun",
    "Output",
    "ProcEnded",
    "ProcHello",
    "ProcLife",
    "ProcReady",
    "ProcsStopped",
    "Refused",
    "Roster",
    "RunClosed",
    "RunLinks",
    "RunOpened",
    "ShutDown",
    "ShutDownDone",
    "SpawnFailed",
    "SpawnProcs",
    "Status",
    "StatusReport",
    "StopProcs",
    "decode",
    "encode",
]


MAX_PROCS_PER_HOST = 1 << 14
"""Limit per mesh: each proc takes four descriptors of its agent, and the kernel allows a process a million."""


@dataclass(frozen=True, slots=True)
class Message:
    """Base of all control messages."""


@dataclass(frozen=True, slots=True)
class HostEntry:
    """An agent's report of its host: what Slurm *granted*, never what the machine has.

    Args:
        rank: position of the host in the allocation, from 0.
        addresses: addresses of its agent, ``tcp://address:port``, best first.
        cpus: granted CPU numbers.
        gpus: granted GPU indices or UUIDs, in Slurm's order.
        memory_bytes: granted memory; the machine's if no limit is set.
        interfaces: interface name -> IPv4 address.
    """

    rank: int
    name: str
    addresses: list[str]
    pid: int
    python: str
    package: str
    cpus: list[int]
    gpus: list[str]
    memory_bytes: int
    interfaces: dict[str, str]


@dataclass(frozen=True, slots=True)
class Join(Message):
    """Agent to head: join the allocation. *problem* describes a fault of the host; empty if there is none."""

    host: HostEntry
    problem: str


@dataclass(frozen=True, slots=True)
class Roster(Message):
    """Head to agents: all hosts of the allocation."""

    hosts: list[HostEntry]


@dataclass(frozen=True, slots=True)
class OpenRun(Message):
    """Controller to head: open a run, or join the run with the same id.

    The run ends with its *owner*, the first process of the run to attach.
    """

    run: str
    title: str
    controller_host: str
    pid: int
    owner: bool


@dataclass(frozen=True, slots=True)
class RunOpened(Message):
    """Head to controller: the run is open on these hosts.

    Args:
        epoch: epoch of the run's owner, the same for all programs of the run until another owner takes it over.
        member: this program's own number, unique in the life of the allocation, see `core.ids.mesh_number`.
    """

    run: str
    epoch: int
    member: int
    hosts: list[HostEntry]


@dataclass(frozen=True, slots=True)
class RunLinks(Message):
    """Controller to head: the fabrics between it and its procs, for `StatusReport`.

    Args:
        links: for each host, fabric and reason: ``host`` (rank), ``fabric``, ``why`` and ``procs`` (how many).
    """

    run: str
    links: list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class CloseRun(Message):
    """Controller to head: the run is over; end its remaining procs."""

    run: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class RunClosed(Message):
    """Head to controller: no proc of the run is left."""

    run: str


@dataclass(frozen=True, slots=True)
class SpawnProcs(Message):
    """Controller to head to agents: start procs.

    Args:
        mesh: number of the proc mesh, unique in the run.
        hosts: ranks of the hosts that start procs.
        first_rank: for each of *hosts*, the mesh rank of its first proc; the others follow.
        per_host: number of procs on each host.
        num_ranks: size of the whole mesh.
        environment: variables for each proc; an empty dict inherits the agent's.
        preload: modules that the zygote imports before it forks.
        sys_path: the controller's import path.
        cwd: the controller's working directory.
        umask: the controller's; the agents' own excludes all other users.
        gpu_visible: ``own-first``, ``own`` or ``all``; see config key `procs.gpu_visible`.
        deadline_s: seconds within which each proc must report.
        unset: names of variables to remove from the procs' environment.
        bind: ``auto`` or ``none``, see config key `procs.bind`; ``given`` uses *bindings*.
        bindings: for each proc of a host; see `agent.resources.binding`.
        python: interpreter of the procs; empty for the agent's own.
        mpi: plugin of the step whose tasks the procs are; empty if they are not tasks of a step.
    """

    run: str
    mesh: int
    hosts: list[int]
    first_rank: list[int]
    per_host: int
    num_ranks: int
    environment: dict[str, str]
    preload: list[str]
    sys_path: list[str]
    cwd: str
    umask: int
    gpu_visible: str
    deadline_s: float
    unset: list[str] = field(default_factory=list)
    bind: str = "none"
    bindings: list[dict[str, str]] = field(default_factory=list)
    python: str = ""
    mpi: str = ""


@dataclass(frozen=True, slots=True)
class ProcHello(Message):
    """Proc to its agent, over its pipe: it is ready and listens at *addresses*."""

    mesh: int
    rank: int
    incarnation: int
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class ProcReady(Message):
    """Agent to controller: a proc is ready and listens. *incarnation* is a decimal string: JSON has no u64."""

    run: str
    mesh: int
    rank: int
    host: int
    pid: int
    incarnation: str
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class SpawnFailed(Message):
    """Agent to controller: a proc failed to start."""

    run: str
    mesh: int
    rank: int
    host: int
    cause: str
    last_lines: list[str]


@dataclass(frozen=True, slots=True)
class ProcEnded(Message):
    """Agent to controller: a proc has ended. *expected* after `StopProcs`; *cause* describes why."""

    run: str
    mesh: int
    rank: int
    host: int
    expected: bool
    cause: str
    last_lines: list[str]


@dataclass(frozen=True, slots=True)
class ProcLife(Message):
    """Agent to controller: a proc is ``suspect``, because a signal has stopped it, or ``alive`` again.

    Args:
        stopped_s: how long it has been stopped.
        dead_s: how long it may be stopped before it is killed; see config key `liveness.dead_s`.
    """

    run: str
    mesh: int
    rank: int
    host: int
    life: str
    stopped_s: float
    dead_s: float


@dataclass(frozen=True, slots=True)
class StopProcs(Message):
    """Controller to head to agents: end the procs of a mesh, with *grace_s* seconds before they are killed."""

    run: str
    mesh: int
    hosts: list[int]
    grace_s: float


@dataclass(frozen=True, slots=True)
class ProcsStopped(Message):
    """Agent to controller: no proc of the mesh is left on this host, and all their output has been sent."""

    run: str
    mesh: int
    host: int


@dataclass(frozen=True, slots=True)
class Output(Message):
    """Agent to controller: output lines of a proc. *stream* is ``out`` or ``err``; *dropped* counts omitted lines."""

    run: str
    mesh: int
    rank: int
    host: int
    stream: str
    lines: list[str]
    dropped: int


@dataclass(frozen=True, slots=True)
class HostLost(Message):
    """Head to controller: a host and everything on it is lost."""

    run: str
    host: int
    cause: str


@dataclass(frozen=True, slots=True)
class Refused(Message):
    """Head or agent: a request was refused, and why.

    Args:
        request: name of the refused message; empty if it could not be read.
        mesh: its field of that name; 0 if it has none.
        number: likewise, or its field *ticket*.
    """

    run: str
    problem: str
    request: str = ""
    mesh: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Tool to head: report hosts and runs."""


@dataclass(frozen=True, slots=True)
class StatusReport(Message):
    """Head to tool: hosts with their state, and runs with their procs, as plain data."""

    hosts: list[dict[str, object]]
    runs: list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class ShutDown(Message):
    """Tool to head to agents: end all procs, clean up, and exit."""

    grace_s: float


@dataclass(frozen=True, slots=True)
class ShutDownDone(Message):
    """Agent to head to tool: number of our processes left on each host (name -> count)."""

    left: dict[str, int] = field(default_factory=dict)


def _subclasses() -> dict[str, type[Message]]:
    importlib.import_module("monarch_hpc.wire.calls")  # defines the messages of `status --calls`
    return {cls.__name__: cls for cls in Message.__subclasses__()}


_BY_NAME: dict[str, type[Message]] = {}


def encode(message: Message) -> bytes:
    """Render *message* for the body of a CONTROL frame."""
    return json.dumps({"op": type(message).__name__, **dataclasses.asdict(message)}, separators=(",", ":")).encode()


def decode(body: bytes | bytearray | memoryview) -> Message:
    """Read the body of a CONTROL frame.

    Raises:
        FrameError: not JSON, an unknown message, or a field that is missing, unknown or of the wrong type.
    """
    try:
        document = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:  # RecursionError: brackets nested a hundred thousand deep
        raise FrameError(f"control message is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise FrameError("control message is not an object")
    if not _BY_NAME:
        _BY_NAME.update(_subclasses())
    name = document.pop("op", None)
    cls = _BY_NAME.get(name) if isinstance(name, str) else None
    if cls is None:
        raise FrameError(f"unknown control message {name!r:.80}")
    try:
        message = build(cls, document, cls.__name__)
    except RecursionError as error:  # the error text shows the bad value, which may be nested as deeply
        raise FrameError(f"{cls.__name__}: nested too deeply") from error
    assert isinstance(message, Message)
    return message
