"""The table of calls, which `monarch-hpc status --calls` shows."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "CALLS",
    "PROGRAM_MESH",
    "ActorSeen",
    "EndpointCount",
    "ProcCalls",
    "RunningCall",
    "Scene",
    "SentCall",
    "Wait",
]

PROGRAM_MESH = -1
"""Stands for a mesh's number where the process is a program."""


@dataclass(frozen=True, slots=True)
class ActorSeen:
    """One actor of a proc.

    Args:
        actor: its number, hexadecimal: JSON has no u64.
        name: name of its mesh.
        rank: its rank in that mesh.
        state: ``spawned`` while its constructor runs, ``ready``, ``stopped`` or ``failed``.
        cause: why it is no longer ready.
        age_s: how long it has been in that state.
    """

    actor: str
    name: str
    rank: int
    state: str
    cause: str
    age_s: float


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that an actor is handling.

    Args:
        actor: the actor's number.
        call: the caller's number of the call, see `telemetry.layout`; 0 if the caller wants no answer.
        caller: incarnation of the calling process, hexadecimal.
        caller_host: host of the calling process.
        queued_s: how long the call waited in the process that handles it.
        operation: what it does, if it says so: an operation on mesh tensors, and the line that issued it.
    """

    actor: str
    endpoint: str
    call: int
    caller: str
    caller_host: str
    age_s: float
    queued_s: float
    operation: str = ""


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call without an answer yet.

    Args:
        call: its number.
        actor: number of the calling actor; 0 for a program.
        num_receivers: number of actors that were sent it; several for a cast.
        target: incarnation of the called process, empty for a cast; *target_host* is its host.
        target_actor: number of the called actor; *target_name* is the name of its mesh.
    """

    call: int
    actor: str
    num_receivers: int
    target: str
    target_host: str
    target_actor: str
    target_name: str
    endpoint: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A waiting thread or task.

    Args:
        actor: number of the actor that waits; 0 for a program.
        calls: numbers of the calls whose answers it waits for, some of *num_calls*.
        what: what it waits for, if that is not a call.
        age_s: how long ago the first of the calls was made; 0 without calls.
    """

    actor: str
    calls: list[int]
    num_calls: int
    what: str
    age_s: float


@dataclass(frozen=True, slots=True)
class EndpointCount:
    """Statistics of one endpoint, since the process started.

    Args:
        name: name of the actors' mesh.
        total_s: total time of all calls; *longest_s* the longest of them.
        ran: histogram of the times, see `telemetry.histogram`; without trailing zeros.
        queued_total_s: the same for the time that calls waited in the process before they ran, as the other two.
    """

    name: str
    endpoint: str
    num_calls: int
    num_failed: int
    total_s: float
    longest_s: float
    ran: list[int]
    queued_total_s: float
    queued_longest_s: float
    queued: list[int]


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of a process at one moment, read from its records.

    Args:
        problem: why its records cannot be read; empty if they can.
        incarnation: hexadecimal; empty if it has not recorded anything.
        sent: the calls that a thread or task waits for, and the oldest of *num_sent*.
    """

    problem: str
    incarnation: str
    actors: list[ActorSeen]
    running: list[RunningCall]
    waits: list[Wait]
    sent: list[SentCall]
    num_sent: int
    endpoints: list[EndpointCount]


@dataclass(frozen=True, slots=True)
class ProcCalls(RunProcess):
    """The calls of one process."""

    scene: Annotated[Scene, "its actors, and the calls that they run, have sent and wait for"]


CALLS = Table("calls", ProcCalls, "What processes of runs do: their actors, calls and waits.")
