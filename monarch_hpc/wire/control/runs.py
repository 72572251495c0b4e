"""Messages about a run: it is opened, reports its fabrics, and is closed."""

from __future__ import annotations

from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message

__all__ = ["TAKEN_OVER", "CloseRun", "OpenRun", "Recording", "RunClosed", "RunLinks", "RunOpened", "RunTaken"]

TAKEN_OVER = "another program has taken over run"
"""Begins the reason with which a head closes the channels of a run's earlier owner and members."""


@dataclass(frozen=True, slots=True)
class OpenRun(Message):
    """Controller to head: open a run, or join the run with the same id.

    The run ends with its *owner*, the first process of the run to attach.

    Args:
        epoch: the run's, if the head of an earlier term has opened it; 0 if not. *member* likewise.
        meshes: number and hosts of each mesh that this program has requested.
        on_loss: see config key `run.on_loss`; the owner's counts.
        hold_s: likewise `run.hold_s`.
        takes: epoch of the run that the owner takes over, -1 for any; 0 if it takes none over.
        votes: whether the owner has a voice in elections of the next head.
    """

    run: str
    title: str
    controller_host: str
    pid: int
    owner: bool
    epoch: int = 0
    member: int = 0
    meshes: list[list[int]] = field(default_factory=list)
    on_loss: str = "stop"
    hold_s: float = 0.0
    takes: int = 0
    votes: bool = False


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
class RunTaken(Message):
    """Head to controller: the reports about all procs of the run that it takes over have been sent."""

    run: str


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
