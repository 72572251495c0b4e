"""Tables of an allocation as its head, its directory and Slurm show it: read where a question is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "CHANNELS",
    "HOSTS",
    "OVERVIEW",
    "RUNS",
    "SLURM",
    "STATE_CHANGES",
    "ChangeRow",
    "ChannelRow",
    "HostRow",
    "RunRow",
    "SlurmNode",
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


HOSTS = Table("hosts", HostRow, "Hosts of allocations, as their heads see them.")
RUNS = Table("runs", RunRow, "Runs that go on.")
CHANNELS = Table("channels", ChannelRow, "Channels between programs and their procs, and between the head and agents.")
STATE_CHANGES = Table("state_changes", ChangeRow, "What has become of hosts, runs and procs.", history=True)
SLURM = Table("slurm", SlurmNode, "Hosts of allocations by Slurm, as Slurm sees them; it is asked for the question.")

OVERVIEW: Mapping[str, Table[Any]] = {table.name: table for table in (HOSTS, RUNS, CHANNELS, STATE_CHANGES, SLURM)}
