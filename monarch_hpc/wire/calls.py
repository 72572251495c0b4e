"""What `monarch-hpc status --calls` asks, and what agents and programs answer: plain data, as all control messages."""

from __future__ import annotations

from dataclasses import dataclass

from monarch_hpc.wire.messages import Message

__all__ = [
    "PROGRAM_MESH",
    "ActorSeen",
    "Calls",
    "CallsReport",
    "EndpointCount",
    "ProcCalls",
    "Recording",
    "RunningCall",
    "SentCall",
    "Wait",
]

PROGRAM_MESH = -1
"""In the place of a mesh's number: this is a program."""


@dataclass(frozen=True, slots=True)
class ActorSeen:
    """One actor of a proc.

    Args:
        actor: its number, hexadecimal: JSON has no u64.
        rank: in the mesh of its name.
        state: ``spawned`` while its constructor runs, ``ready``, ``stopped`` or ``failed``.
        cause: why it is not ready any more.
        age_s: since when it is in that state.
    """

    actor: str
    name: str
    rank: int
    state: str
    cause: str
    age_s: float


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that an actor handles.

    Args:
        actor: its number.
        call: number of the call among those of the caller, see `telemetry.layout`; 0 where it waits for no answer.
        caller: incarnation of the process that called, hexadecimal.
        caller_host: where that was.
        queued_s: how long it had waited in the process that handles it.
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
    """A call that has no answer yet.

    Args:
        call: its number.
        actor: number of the actor that called; 0 for a program.
        target: incarnation of the called process, empty for a cast; *target_host* is where that is.
        target_actor: number of the called actor; *target_name* is that of its mesh.
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
    """A thread or a task that waits.

    Args:
        actor: number of the actor that waits; 0 for a program.
        calls: numbers of the calls whose answers it waits for, some of *num_calls*.
        what: what it waits for in words, where that is no call.
        age_s: how long ago the first of the calls was made; 0 where there is none.
    """

    actor: str
    calls: list[int]
    num_calls: int
    what: str
    age_s: float


@dataclass(frozen=True, slots=True)
class EndpointCount:
    """What was counted of one endpoint, since the process started.

    Args:
        name: of the actors' mesh.
        total_s: how long all calls took together; *longest_s* the longest of them.
        ran: how many took how long, see `telemetry.histogram`; without zeros at the end.
        queued_total_s: likewise of the time that they had waited in the process before, as the other two.
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
class ProcCalls:
    """What one process does.

    Args:
        mesh: number of its mesh, or `PROGRAM_MESH`.
        host: name of its host.
        incarnation: hexadecimal; empty where it has not recorded anything.
        state: ``starting``, ``ready``, ``stopped`` by a signal, ``stopping``, or ``ended``.
        cause: why it ended.
        problem: why nothing can be read of it.
        sent: those that somebody waits for, and the oldest of *num_sent*.
    """

    run: str
    mesh: int
    rank: int
    host: str
    pid: int
    incarnation: str
    state: str
    cause: str
    problem: str
    actors: list[ActorSeen]
    running: list[RunningCall]
    waits: list[Wait]
    sent: list[SentCall]
    num_sent: int
    endpoints: list[EndpointCount]


@dataclass(frozen=True, slots=True)
class Calls(Message):
    """Tool to head to agents and controllers: who runs what, and who waits for whom?

    Args:
        ticket: the head's number of the question; 0 from a tool.
        timeout_s: how long the head waits for answers.
    """

    ticket: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class CallsReport(Message):
    """Agent or controller to head to tool: what its processes do.

    Args:
        missing: who did not answer in time, in words.
    """

    ticket: int
    procs: list[ProcCalls]
    missing: list[str]


@dataclass(frozen=True, slots=True)
class Recording(Message):
    """Program to head, and head to the run's owner: where the program's records are, for who is on its machine.

    The owner sends it back if it can read them, and from then on answers for the program.

    Args:
        place: what processes have in common that can read each other's, see `transport.ucx.negotiation.read_place`.
        fd: descriptor of the memory, in the process *pid*.
        incarnation: of the program, hexadecimal.
    """

    run: str
    place: str
    host: str
    pid: int
    fd: int
    incarnation: str
