"""Messages about procs: they are started, report, stop, and end."""

from __future__ import annotations

from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import DeathKind
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.proc_key import ProcKey

__all__ = [
    "MAX_PROCS_PER_HOST",
    "ProcEnded",
    "ProcHello",
    "ProcLife",
    "ProcReady",
    "ProcReplaced",
    "ProcReport",
    "ProcsStopped",
    "ReplacementTaken",
    "SpawnFailed",
    "SpawnProcs",
    "StopProcs",
]

MAX_PROCS_PER_HOST = 1 << 14
"""Limit per mesh: each proc takes four descriptors of its agent, and the kernel allows a process a million."""


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
        restarts: number of earlier procs of these ranks, the last of which these replace, on any host.
        ranks: ranks in the mesh to start, of those that the other fields give; empty for all of them.
        again: the program does not know whether the agents have had this order; those that have ignore it.
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
    restarts: int = 0
    ranks: list[int] = field(default_factory=list)
    again: bool = False

    def ranks_on(self, host: int) -> list[int]:
        """The ranks in the mesh of the procs that *host* starts."""
        first = self.first_rank[self.hosts.index(host)]
        return [rank for rank in range(first, first + self.per_host) if not self.ranks or rank in self.ranks]


@dataclass(frozen=True, slots=True)
class ProcHello(Message):
    """Proc to its agent, over its pipe: it is ready and listens at *addresses*."""

    mesh: int
    rank: int
    incarnation: int
    addresses: list[str]


@dataclass(frozen=True, slots=True)
class ProcReport(Message):
    """Base of the messages about one proc, which its agent sends to the controller."""

    proc: ProcKey

    @property
    def run(self) -> str:
        """The run, by which the head forwards the message; *mesh* likewise."""
        return self.proc.run

    @property
    def mesh(self) -> int:
        """Number of the proc's mesh."""
        return self.proc.mesh


@dataclass(frozen=True, slots=True)
class ProcReady(ProcReport):
    """Agent to controller: a proc is ready and listens. *incarnation* is a decimal string: JSON has no u64."""

    pid: int
    incarnation: str
    addresses: list[str]
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class SpawnFailed(ProcReport):
    """Agent to controller: a proc failed to start."""

    cause: str
    last_lines: list[str]


@dataclass(frozen=True, slots=True)
class ProcEnded(ProcReport):
    """Agent to controller: a proc has ended.

    Args:
        expected: whether it was asked to end, as by `StopProcs`.
        cause: why, in words.
        kind: a `core.death.DeathKind`.
        succeeded: whether it has ended by itself, with exit code 0.
        running: the calls that it was handling: incarnation of the caller, hexadecimal, and the caller's number.
    """

    expected: bool
    cause: str
    last_lines: list[str]
    kind: str = DeathKind.UNKNOWN.value
    succeeded: bool = False
    running: list[list[str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProcLife(ProcReport):
    """Agent to controller: a proc is ``suspect``, because a signal has stopped it, or ``alive`` again.

    Args:
        stopped_s: how long it has been stopped.
        dead_s: how long it may be stopped before it is killed; see config key `liveness.dead_s`.
    """

    life: str
    stopped_s: float
    dead_s: float


@dataclass(frozen=True, slots=True)
class ProcReplaced(Message):
    """Program to proc: a proc has replaced another one; calls to its rank go to it from here on.

    The other fields are those of `actor.messages.proc_ref.ProcRef`.

    Args:
        actors: numbers of the actors that have been made again in it.
    """

    mesh: int
    rank: int
    host: str
    host_rank: int
    pid: int
    incarnation: int
    addresses: list[str]
    restarts: int
    allocation: str
    actors: list[int]


@dataclass(frozen=True, slots=True)
class ReplacementTaken(Message):
    """Proc to program: calls of this process go to the proc that has replaced another, see `ProcReplaced`."""

    mesh: int
    rank: int
    restarts: int


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
