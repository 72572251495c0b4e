"""The context of running code: its actor, its proc, and the message that it handles."""

from __future__ import annotations

import atexit
import contextvars
import importlib
import os
from collections.abc import Callable
from dataclasses import field
from typing import Protocol

from monarch_hpc.actor.instance import ActorId, ActorInstance
from monarch_hpc.config.program import own_slurm_ids, own_variables
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.ids import SlurmIds
from monarch_hpc.core.machine.gpus import GRANT_VARIABLES, usable_gpus
from monarch_hpc.core.shape import Extent, Point, Region

__all__ = [
    "CallerState",
    "Context",
    "ProcInfo",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "deadline",
    "deadlines_seen",
    "note_deadline",
    "provide_instances",
    "set_caller",
    "set_context",
    "start_program",
]


@dataclass(frozen=True, slots=True)
class ProcInfo:
    """The proc that this code runs in.

    Attributes:
        rank: rank in its proc mesh.
        host: name of the host.
        host_rank: place of the host in the allocation.
        local_rank: place among the procs of its mesh on this host.
        gpus: indices of the GPUs visible to this proc, those assigned to it first. For a program: the GPUs that its
            variables name (CUDA_VISIBLE_DEVICES and the like); without such variables all GPUs of the machine, or none
            in a Slurm job.
        slurm_job_id: number of the Slurm job that it runs in; empty outside a job.
        slurm: other identifiers from Slurm.
        cpus: numbers of the CPUs that it may run on, out of those granted to the host.
        python: the interpreter requested with `HostMesh.with_python_executable`; empty if none was.
    """

    allocation: str
    run: str
    rank: int
    num_ranks: int
    host: str
    host_rank: int
    local_rank: int
    gpus: tuple[str, ...]
    slurm_job_id: str = ""
    slurm: SlurmIds = field(default_factory=SlurmIds)
    cpus: tuple[int, ...] = ()
    python: str = ""


@dataclass(frozen=True, slots=True)
class Context:
    """The message being handled.

    Attributes:
        actor_name: the name given to `spawn`.
        spawn_rank: the actor's coordinates in the spawned mesh.
        message_rank: the actor's coordinates in the mesh that the message was sent to, which may be a slice.
        actor: number of the actor, which owns everything that it spawns; 0 for the program.
        mark: identifies the actor in the records of this process, see `telemetry.recorder`.
        resources: called when the actor ends, see `own`; the same list in all contexts of the actor.
        class_name: module and name of the actor's class; empty for the program.
        region: the place of the actor's mesh among the procs of its proc mesh; None outside of actors.
        creator: the code that spawned the actor, see `actor.messages.creator`; None outside of actors.
    """

    actor_name: str
    spawn_rank: Point
    message_rank: Point
    proc: ProcInfo
    actor: int = 0
    mark: int = 0
    resources: list[Callable[[], object]] = field(default_factory=list, repr=False, compare=False)
    class_name: str = ""
    region: Region | None = field(default=None, repr=False)
    creator: object = field(default=None, repr=False, compare=False)

    @property
    def actor_id(self) -> ActorId:
        """Identity of the actor, or of the program."""
        return ActorId(f"{self.proc.host}/{os.getpid()}", self.actor_name, self.actor, self.spawn_rank.rank)

    @property
    def actor_instance(self) -> ActorInstance:
        """The actor itself: its name, rank and proc, and methods to end it."""
        if _process.make_instance is None:
            start_program()
            assert _process.make_instance is not None
        return _process.make_instance(self)

    def own(self, close: Callable[[], object]) -> None:
        """Call *close* when the actor ends, however it ends: after its `__cleanup__`, the last given first.

        For what belongs to the actor and is not its own object: sockets, memory, threads, actors of others. In a
        program outside of actors: when the interpreter exits.
        """
        if self.actor:
            self.resources.append(close)
        else:
            atexit.register(close)

    @property
    def cancelled(self) -> bool:
        """Whether the caller of the running endpoint cancelled the call, or its deadline has passed."""
        caller = _caller.get()
        return caller is not None and (caller.cancelled or self.deadline_left_s == 0.0)

    @property
    def deadline_left_s(self) -> float | None:
        """Seconds until the deadline of the running endpoint's caller; None if there is none."""
        deadline_s = deadline()
        return None if deadline_s is None else max(deadline_s - monotonic(), 0.0)


class CallerState(Protocol):
    """The state of the caller of the call being handled."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller has cancelled the call."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """The caller's deadline, in seconds of `time.monotonic`; None if it set none."""
        ...


@dataclass(slots=True)
class _ProcessState:
    """What the contexts of a process have in common.

    Attributes:
        outside: the context outside of endpoints; None until it is first needed.
        make_instance: see `provide_instances`.
        deadlines_seen: see `deadlines_seen`.
    """

    outside: Context | None = None
    make_instance: Callable[[Context], ActorInstance] | None = None
    deadlines_seen: bool = False


_process = _ProcessState()
_PROGRAM = "monarch_hpc.mesh.program.controller"
"""The module that makes a process a program, by name: this layer does not depend on it."""


def start_program() -> None:
    """Make this process a program: it uses the API, and is no proc."""
    importlib.import_module(_PROGRAM).Controller.instance()


def provide_instances(make: Callable[[Context], ActorInstance]) -> None:
    """Let `Context.actor_instance` return what *make* makes; once in each process, by the layer above."""
    _process.make_instance = make


_caller: contextvars.ContextVar[CallerState | None] = contextvars.ContextVar("monarch_hpc_caller", default=None)

_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("monarch_hpc_context", default=None)


def context() -> Context:
    """The context of the running endpoint; outside of endpoints the context of the process, usually the program."""
    return _current.get() or _process.outside or outside(own_info())


def own_info() -> ProcInfo:
    """The place of this process as far as it can find out alone: host, CPUs, GPUs and Slurm's identifiers."""
    slurm = own_slurm_ids()
    return ProcInfo(
        allocation="",
        run="",
        rank=0,
        num_ranks=1,
        host=slurm.node or os.uname().nodename,
        host_rank=-1,
        local_rank=0,
        gpus=tuple(usable_gpus(own_variables(GRANT_VARIABLES), os.listdir("/dev"), in_job=bool(slurm.job_id))),
        slurm_job_id=slurm.job_id,
        slurm=slurm,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
    )


def outside(info: ProcInfo) -> Context:
    """Make *info* the place of all code that runs outside of endpoints; return its context."""
    _process.outside = made = Context("client", Point(0, Extent((), ())), Point(0, Extent((), ())), info)
    return made


def set_context(new: Context) -> contextvars.Token[Context | None]:
    """Make *new* the context of the running thread or task."""
    return _current.set(new)


def set_caller(caller: CallerState) -> None:
    """Make *caller* the caller of the call that the running thread or task handles."""
    _caller.set(caller)


def note_deadline() -> None:
    """Note that this process handles calls with a deadline."""
    _process.deadlines_seen = True


def deadlines_seen() -> bool:
    """Whether `deadline` can return one; most processes never see a deadline, and skip it on the call path."""
    return _process.deadlines_seen


def deadline() -> float | None:
    """Deadline of the running endpoint's caller, in seconds of `time.monotonic`; None if there is none."""
    caller = _caller.get()
    return None if caller is None else caller.deadline_s


def current_rank() -> Point:
    """This actor's coordinates in the mesh that the message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Sizes of the mesh that the message was sent to, by dimension."""
    return context().message_rank.extent.to_dict()


def current_actor_name() -> str:
    """The identity of this actor as text, ``HOST/PID/NAME[RANK]``, which no other actor of that name has."""
    return str(context().actor_id)
