"""Messages of `monarch-hpc status --calls`: plain data, as all control messages."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_hpc.wire.control.message import Message

__all__ = [
    "PROGRAM_MESH",
    "ActorSeen",
    "Calls",
    "CallsReport",
    "EndpointCount",
    "ProcCalls",
    "Recording",
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
    """

    actor: str
    endpoint: str
    call: int
    caller: str
    caller_host: str
    age_s: float
    queued_s: float


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call without an answer yet.

    Args:
        call: its number.
        actor: number of the calling actor; 0 for a program.
        target: incarnation of the called process, empty for a cast; *target_host* is its host.
        target_actor: number of the called actor; *target_name* is the name of its mesh.
    """

    call: int
    actor: str
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
class ProcCalls:
    """The calls of one process.

    Args:
        mesh: number of its mesh, or `PROGRAM_MESH`.
        host: name of its host.
        state: ``starting``, ``ready``, ``stopped`` by a signal, ``stopping``, or ``ended``.
        cause: why it ended.
    """

    run: str
    mesh: int
    rank: int
    host: str
    pid: int
    state: str
    cause: str
    scene: Scene


@dataclass(frozen=True, slots=True)
class Calls(Message):
    """Tool to head to agents and controllers: report running calls and waits.

    Args:
        ticket: the head's number of the query; 0 from a tool.
        timeout_s: how long the head waits for answers.
    """

    ticket: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class CallsReport(Message):
    """Agent or controller to head to tool: the calls of its processes.

    Args:
        missing: processes that did not answer in time, described.
    """

    ticket: int
    procs: list[ProcCalls]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Recording(Message):
    """Program to head, and head to the run's owner: where to read the program's records, on its machine.

    The owner sends the message back if it can read them, and from then on answers for the program.

    Args:
        place: equal for processes that can read each other's memory, see `core.machine.place.read_place`.
        fd: descriptor of the memory, in the process *pid*.
        incarnation: incarnation of the program, hexadecimal.
    """

    run: str
    place: str
    host: str
    pid: int
    fd: int
    incarnation: str
