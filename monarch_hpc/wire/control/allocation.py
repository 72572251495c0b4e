"""Messages about an allocation: its hosts join, are reported, are lost, and are shut down."""

from __future__ import annotations

from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.wire.control.message import Message

__all__ = [
    "AllocationEnds",
    "DrainHost",
    "FreeHosts",
    "HostEnded",
    "HostEntry",
    "HostReturned",
    "HostStillLost",
    "HostsFreed",
    "Join",
    "Roster",
    "ShutDown",
    "ShutDownDone",
    "Status",
    "StatusReport",
    "Vacate",
    "Vacated",
]


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
        group: name of the host's group; empty in an allocation without groups.
        component: of a heterogeneous job, that has the host; -1 in any other.
        incarnation: that of its agent, hexadecimal; a later agent of the same host has another.
        job_id: the Slurm job that has the host; 0 without one. An allocation that has grown has several jobs.
        first_rank: rank of the first host of that job; 0 in the job that the allocation began with.
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
    group: str = ""
    component: int = -1
    incarnation: str = ""
    job_id: int = 0
    first_rank: int = 0


@dataclass(frozen=True, slots=True)
class Join(Message):
    """Agent to head: join the allocation.

    Args:
        problem: describes a fault of the host; empty if there is none.
        num_hosts: the number of hosts of the allocation up to the last one of this host's job.
    """

    host: HostEntry
    problem: str
    num_hosts: int = 0


@dataclass(frozen=True, slots=True)
class Roster(Message):
    """Head to agents: the hosts of the allocation that have an agent.

    Args:
        num_hosts: the number of all, whose ranks are below it.
    """

    hosts: list[HostEntry]
    num_hosts: int


@dataclass(frozen=True, slots=True)
class HostEnded(Message):
    """Head to controller: a host and everything on it is lost; *kind* is a `core.death.DeathKind`.

    Args:
        incarnation: that of the agent which is lost; see `HostEntry`.
        returning: whether the head starts the agent again at once; `HostReturned` or `HostStillLost` follows then.
    """

    run: str
    host: int
    cause: str
    kind: str = DeathKind.UNKNOWN.value
    incarnation: str = ""
    returning: bool = False


@dataclass(frozen=True, slots=True)
class HostReturned(Message):
    """Head to controller: a host that was lost has an agent again, and none of its earlier procs; or it was added."""

    run: str
    host: HostEntry


@dataclass(frozen=True, slots=True)
class HostStillLost(Message):
    """Head to controller: a lost host does not return at once, or not at all if *given_up*; and why."""

    run: str
    host: int
    cause: str
    given_up: bool


@dataclass(frozen=True, slots=True)
class AllocationEnds(Message):
    """Head to controllers: Slurm ends the allocation; *kind* is a `core.death.DeathKind`, *cause* says it in words."""

    kind: str
    cause: str


@dataclass(frozen=True, slots=True)
class Status(Message):
    """Tool to head: report hosts and runs."""


@dataclass(frozen=True, slots=True)
class StatusReport(Message):
    """Head to tool: hosts with their state, and runs with their procs, as plain data.

    Args:
        idle_left_s: time until the head ends the allocation because nothing uses it; -1 if it will not.
        kept: the kept meshes, see `wire.control.kept`.
    """

    hosts: list[dict[str, object]]
    runs: list[dict[str, object]]
    idle_left_s: float = -1.0
    kept: list[dict[str, object]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ShutDown(Message):
    """Tool to head to agents: end all procs, clean up, and exit.

    Args:
        grace_s: seconds that procs have to end.
        kind: why, as a `core.death.DeathKind`, if the head knows of another reason than that it was asked to.
        cause: the same in words.
    """

    grace_s: float
    kind: str = DeathKind.STOPPED.value
    cause: str = ""

    @property
    def death(self) -> Death | None:
        """Why, if it is for another reason than that somebody asked for it."""
        kind = DeathKind.parse(self.kind)
        return None if kind is DeathKind.STOPPED else Death(kind, self.cause, expected=True)


@dataclass(frozen=True, slots=True)
class ShutDownDone(Message):
    """Agent to head to tool: number of our processes left on each host (name -> count)."""

    left: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DrainHost(Message):
    """Tool to head: start no more procs on a host. The answer is a `StatusReport`.

    Args:
        host: its name.
        reason: for people; empty to use the host again.
    """

    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class FreeHosts(Message):
    """Tool to head: end everything on some hosts, and forget them; the allocation goes on without them.

    Args:
        hosts: ranks; not the head's own.
        grace_s: as in `ShutDown`.
    """

    hosts: list[int]
    grace_s: float


@dataclass(frozen=True, slots=True)
class HostsFreed(Message):
    """Head to tool: number of our processes left on each host (name -> count), -1 where it is unknown."""

    left: dict[str, int]


@dataclass(frozen=True, slots=True)
class Vacate(Message):
    """Tool to head: if nothing uses the allocation, let nothing use it while this tool is connected."""


@dataclass(frozen=True, slots=True)
class Vacated(Message):
    """Head to tool: what uses the allocation, in words; empty if nothing does, and nothing will."""

    use: str
