"""Tables of an allocation as its head, its directory and Slurm show it: read where a question is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "ACTORS",
    "CHANNELS",
    "ENDPOINTS",
    "FAILURES",
    "HOSTS",
    "LOGS",
    "MESHES",
    "OF_PROCESSES",
    "OVERVIEW",
    "RUNS",
    "SLURM",
    "STATE_CHANGES",
    "WAITS",
    "ActorRow",
    "ChangeRow",
    "ChannelRow",
    "EndpointRow",
    "FailureRow",
    "HostRow",
    "LogRow",
    "MeshRow",
    "RunRow",
    "SlurmNode",
    "WaitRow",
]


@dataclass(frozen=True, slots=True)
class HostRow:
    """One host of the allocation."""

    host: Annotated[str, "name of the host"]
    rank: Annotated[int, "its rank"]
    head: Annotated[bool, "whether the head is on it"]
    state: Annotated[str, "`alive`, `suspect`, or `lost`"]
    problem: Annotated[str, "why it is lost, or cannot be used; empty else"]
    drained: Annotated[str, "why it is out of use by request; empty if it is not"]
    cpus: Annotated[int, "granted cores"]
    gpus: Annotated[int, "granted GPUs"]
    memory_bytes: Annotated[int, "granted memory"]
    pid: Annotated[int, "process id of its agent"]
    procs: Annotated[int, "procs that live on it"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run that goes on."""

    run: Annotated[str, "its run"]
    title: Annotated[str, "what was started"]
    host: Annotated[str, "host of its program"]
    pid: Annotated[int, "process id of its program"]
    state: Annotated[str, "`running`, `held`, or `closing`"]
    age_s: Annotated[float, "time since its begin, in seconds"]
    procs: Annotated[int, "its procs that live"]


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """Channels of one kind from one process to a host."""

    run: Annotated[str, "run of the program from which they lead to its procs; empty for that of the head to an agent"]
    host: Annotated[str, "the host at the other end"]
    fabric: Annotated[str, "`ucx`, `tcp`, or `relay`, and by which agent"]
    reason: Annotated[str, "why that one"]
    channels: Annotated[int, "their number"]


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """One change of a host, a run or a proc."""

    t: Annotated[float, "when the head noticed, in seconds of Unix time"]
    what: Annotated[str, "what became of it, e.g. `lost`, `proc died`"]
    subject: Annotated[str, "the host, run or proc; empty for the allocation itself"]
    kind: Annotated[str, "kind of death, where something has died; else empty"]
    cause: Annotated[str, "why, in words"]


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One host as Slurm sees it at the moment."""

    host: Annotated[str, "name of the host"]
    job: Annotated[int, "Slurm's number of the job"]
    state: Annotated[str, "state of the node as Slurm prints it, e.g. `ALLOCATED+DRAIN`"]
    marked: Annotated[bool, "whether Slurm lets no more jobs run there"]
    reason: Annotated[str, "the administrators' reason, if there is one"]
    time_left_s: Annotated[float, "time until the job ends, in seconds; -1 if it is unknown"]


@dataclass(frozen=True, slots=True)
class ActorRow(RunProcess):
    """One actor of a process."""

    incarnation: Annotated[str, "that of its process, hexadecimal"]
    actor: Annotated[str, "name of its mesh"]
    actor_rank: Annotated[int, "its rank in that mesh"]
    actor_id: Annotated[str, "its number in its process, hexadecimal"]
    actor_state: Annotated[str, "`spawned` while its constructor runs, `ready`, `stopped`, or `failed`"]
    actor_cause: Annotated[str, "why it is no longer ready; else empty"]
    age_s: Annotated[float, "how long it has been in that state, in seconds"]
    endpoint: Annotated[str, "what it runs; empty if it runs nothing"]
    runs_s: Annotated[float, "for how long, in seconds"]


@dataclass(frozen=True, slots=True)
class MeshRow:
    """One mesh of procs or actors, as its members are."""

    run: Annotated[str, "its run"]
    mesh: Annotated[int, "number of the mesh of procs, on which a mesh of actors is"]
    kind: Annotated[str, "`procs` or `actors`"]
    name: Annotated[str, "name of a mesh of actors; empty for procs"]
    members: Annotated[int, "its members that are known, also those that have died lately"]
    ready: Annotated[int, "those of them that are ready"]
    hosts: Annotated[int, "the number of their hosts"]


@dataclass(frozen=True, slots=True)
class EndpointRow(RunProcess):
    """One endpoint of a process: exact counts since the process began."""

    actor: Annotated[str, "name of the actors' mesh"]
    endpoint: Annotated[str, "its method"]
    calls: Annotated[int, "calls that it has handled"]
    failed: Annotated[int, "those of them that raised"]
    total_s: Annotated[float, "time that all of them ran, in seconds"]
    longest_s: Annotated[float, "the longest of these times"]
    p50_s: Annotated[float, "the median of these times, wrong by less than a factor of two"]
    p99_s: Annotated[float, "what one call in a hundred exceeds, likewise"]
    queued_s: Annotated[float, "time that all of them had waited in this process, in seconds"]
    queued_longest_s: Annotated[float, "the longest of these times"]
    queued_p99_s: Annotated[float, "what one call in a hundred exceeds"]


@dataclass(frozen=True, slots=True)
class WaitRow(RunProcess):
    """One thread or task that waits."""

    actor: Annotated[str, "name of the mesh of the actor that waits; empty for a program"]
    actor_rank: Annotated[int, "its rank; -1 for a program"]
    calls: Annotated[int, "number of the calls whose answers it waits for; 0 if it waits for something else"]
    endpoint: Annotated[str, "method of the first of them"]
    target: Annotated[str, "name of the mesh of the actor that was called by it"]
    target_host: Annotated[str, "host of that actor; empty for a call through the tree of agents"]
    what: Annotated[str, "what it waits for, if that is not a call; else empty"]
    waits_s: Annotated[float, "how long ago the first of the calls was made, in seconds; 0 without calls"]


@dataclass(frozen=True, slots=True)
class FailureRow:
    """One host, proc or actor that was lost, died or failed."""

    t: Annotated[float, "when it was noticed, in seconds of Unix time"]
    what: Annotated[str, "`lost` for a host, `proc died`, `actor failed`, or `ends` for the allocation"]
    run: Annotated[str, "its run; empty for a host"]
    mesh: Annotated[int, "number of its mesh; -1 for a host or a program"]
    rank: Annotated[int, "its rank; -1 for a host"]
    host: Annotated[str, "name of its host"]
    actor: Annotated[str, "name of the mesh of an actor; else empty"]
    kind: Annotated[str, "kind of death; empty for an actor"]
    cause: Annotated[str, "why, in words"]


@dataclass(frozen=True, slots=True)
class LogRow:
    """One line of the output of a proc."""

    run: Annotated[str, "its run"]
    rank: Annotated[int, "rank of the proc"]
    host: Annotated[str, "its host"]
    t: Annotated[float, "when it was written, or up to a second before, in seconds of Unix time; 0 if it is not known"]
    line: Annotated[str, "what was written, to both streams"]
    file: Annotated[str, "the file, in the allocation's directory"]
    offset: Annotated[int, "where the line begins in that file, in bytes"]


HOSTS = Table("hosts", HostRow, "Hosts of allocations, as their heads see them.")
RUNS = Table("runs", RunRow, "Runs that go on.")
CHANNELS = Table("channels", ChannelRow, "Channels between programs and their procs, and between the head and agents.")
STATE_CHANGES = Table("state_changes", ChangeRow, "What has become of hosts, runs and procs.", history=True)
SLURM = Table("slurm", SlurmNode, "Hosts of allocations by Slurm, as Slurm sees them; it is asked for the question.")

ACTORS = Table("actors", ActorRow, "Actors of processes, also of procs that died lately.")
MESHES = Table("meshes", MeshRow, "Meshes of procs and of actors, as their members are.")
ENDPOINTS = Table("endpoints", EndpointRow, "Counts and times of endpoints by process, which no flood of calls loses.")
WAITS = Table("waits", WaitRow, "Threads and tasks of processes that wait.")
FAILURES = Table("failures", FailureRow, "Hosts that were lost, procs that died, and actors that failed.", history=True)
LOGS = Table("logs", LogRow, "The end of the output of each proc, a mebibyte at most, by line.", history=True)

OF_PROCESSES = frozenset(table.name for table in (ACTORS, MESHES, ENDPOINTS, WAITS, FAILURES))
"""Tables that are made of what processes do at the moment."""

OVERVIEW: Mapping[str, Table[Any]] = {
    table.name: table
    for table in (*(HOSTS, RUNS, CHANNELS, STATE_CHANGES, SLURM), *(ACTORS, MESHES, ENDPOINTS, WAITS, FAILURES, LOGS))
}
