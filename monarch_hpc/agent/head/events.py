"""Changes of the head's state, as facts: each is applied once, and a replay of all of them gives the same state.

A *peer* is the head's number of a link, which is never given to another one.
"""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import DeathKind
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.output import LogsSet, Output
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, ProcsStopped, SpawnFailed
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.control.runs import OpenRun
from monarch_hpc.wire.proc_key import ProcKey

__all__ = [
    "DeadlinePassed",
    "Event",
    "HostDrained",
    "HostEmptied",
    "HostFreed",
    "HostGone",
    "HostJoined",
    "HostLeaves",
    "HostLifeChanged",
    "HostLossExplained",
    "HostMissed",
    "HostReturnChanged",
    "KeptEnded",
    "KeptLeft",
    "KeptUsed",
    "MeshLeftHost",
    "MeshReport",
    "MeshRequested",
    "MeshWasKept",
    "PeerEnteredRun",
    "PeerLeftRun",
    "ProcGone",
    "ProcStarted",
    "ProcStopped",
    "RunAttached",
    "RunLeftHost",
    "RunStopping",
    "ShutdownBegan",
    "of_report",
]


@dataclass(frozen=True, slots=True)
class HostJoined:
    """The agent of a host reported; *problem* says why the host cannot be used, and is empty if it can.

    Args:
        num_hosts: see `Join`.
    """

    peer: int
    entry: HostEntry
    problem: str
    num_hosts: int = 0


@dataclass(frozen=True, slots=True)
class HostLifeChanged:
    """An agent became silent, or answers again."""

    rank: int
    life: Liveness


@dataclass(frozen=True, slots=True)
class HostGone:
    """A host is lost, with all its procs."""

    rank: int
    cause: str


@dataclass(frozen=True, slots=True)
class HostLossExplained:
    """The cause of a `HostGone` is known, as far as it will be; programs are told."""

    rank: int
    name: str
    kind: DeathKind
    cause: str


@dataclass(frozen=True, slots=True)
class HostLeaves:
    """The Slurm job of a host ends: nothing is started there any more."""

    rank: int


@dataclass(frozen=True, slots=True)
class HostMissed:
    """A host of the head before has not joined this one."""

    entry: HostEntry
    cause: str


@dataclass(frozen=True, slots=True)
class HostReturnChanged:
    """The return of a lost host: *what* is done for it, or that it was given up if that is empty; and why."""

    rank: int
    what: str
    cause: str


@dataclass(frozen=True, slots=True)
class HostDrained:
    """The user took a host out of use, or back into use if *reason* is empty."""

    rank: int
    reason: str


@dataclass(frozen=True, slots=True)
class HostFreed:
    """A host, whose agent has ended, no longer belongs to the allocation."""

    rank: int


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The head no longer waits for agents."""


@dataclass(frozen=True, slots=True)
class RunAttached:
    """A peer opened a run, or attached to it; as its owner if *opened* says so.

    Args:
        time_s: monotonic time.
    """

    peer: int
    opened: OpenRun
    time_s: float


@dataclass(frozen=True, slots=True)
class PeerEnteredRun:
    """A peer became a member of a run by another request than to open it."""

    run: str
    peer: int


@dataclass(frozen=True, slots=True)
class PeerLeftRun:
    """A member of a run is lost."""

    run: str
    peer: int


@dataclass(frozen=True, slots=True)
class RunStopping:
    """A run is over, and its procs are told to end on all connected hosts."""

    run: str


@dataclass(frozen=True, slots=True)
class RunLeftHost:
    """Nothing of a stopping run is left on a host, as far as will be known; with the last host the run ends."""

    run: str
    host: int


@dataclass(frozen=True, slots=True)
class MeshRequested:
    """A peer's request for procs of a mesh, its first ones or such that replace others, went to *hosts*."""

    run: str
    mesh: int
    peer: int
    hosts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MeshLeftHost:
    """All procs of a mesh on a host have ended on request; with the last host the mesh ends."""

    run: str
    mesh: int
    host: int


@dataclass(frozen=True, slots=True)
class MeshWasKept:
    """A mesh stays when its run ends, as *name*; its procs on *hosts*, beside those where it is known to be."""

    name: str
    run: str
    mesh: int
    num_ranks: int
    hosts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class KeptUsed:
    """A program uses a kept mesh."""

    name: str
    peer: int


@dataclass(frozen=True, slots=True)
class KeptLeft:
    """A program that used a kept mesh is gone."""

    name: str
    peer: int


@dataclass(frozen=True, slots=True)
class KeptEnded:
    """A kept mesh was stopped; no host has procs of it."""

    name: str


@dataclass(frozen=True, slots=True)
class ProcStarted:
    """A proc is ready."""

    proc: ProcKey


@dataclass(frozen=True, slots=True)
class ProcStopped:
    """A proc was stopped by a signal, or goes on."""

    proc: ProcKey
    stopped: bool


@dataclass(frozen=True, slots=True)
class ProcGone:
    """A proc has ended, or could not be started; *expected* if it was asked to end."""

    proc: ProcKey
    kind: DeathKind = DeathKind.UNKNOWN
    cause: str = ""
    expected: bool = False


@dataclass(frozen=True, slots=True)
class ShutdownBegan:
    """All agents are asked to end; *why* is empty if a user asked for it."""

    kind: DeathKind = DeathKind.STOPPED
    cause: str = ""


@dataclass(frozen=True, slots=True)
class HostEmptied:
    """An agent is about to end; *left* is the number of processes by host, -1 where it is unknown."""

    rank: int
    left: dict[str, int]


Event = (
    HostJoined
    | HostLifeChanged
    | HostMissed
    | HostGone
    | HostLeaves
    | HostLossExplained
    | HostReturnChanged
    | DeadlinePassed
    | RunAttached
    | PeerEnteredRun
    | PeerLeftRun
    | RunStopping
    | RunLeftHost
    | MeshRequested
    | MeshLeftHost
    | MeshWasKept
    | KeptUsed
    | KeptLeft
    | KeptEnded
    | ProcStarted
    | ProcStopped
    | ProcGone
    | ShutdownBegan
    | HostEmptied
    | HostFreed
    | HostDrained
)


MeshReport = ProcReady | ProcLife | SpawnFailed | ProcEnded | ProcsStopped | Output | LogsSet | Refused
"""Agents' messages about a mesh, for the program or actor that requested it."""


def of_report(message: MeshReport) -> Event | None:
    """The event that an agent's message about a mesh reports; None if it reports none."""
    match message:
        case ProcReady():
            return ProcStarted(message.proc)
        case ProcLife():
            return ProcStopped(message.proc, message.life == Liveness.SUSPECT.value)
        case SpawnFailed():
            return ProcGone(message.proc, cause=message.cause)
        case ProcEnded():
            return ProcGone(message.proc, DeathKind.parse(message.kind), message.cause, message.expected)
        case ProcsStopped():
            return MeshLeftHost(message.run, message.mesh, message.host)
        case _:
            return None
