"""Who and where am I: what an endpoint may ask about itself and about the message it handles."""

from __future__ import annotations

import contextvars
import importlib
import os
import platform
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from monarch_hpc.config.program import own_slurm_ids, own_variables
from monarch_hpc.core.gpus import TELLING_VARIABLES, usable_gpus
from monarch_hpc.core.ids import SlurmIds
from monarch_hpc.core.shape import Extent, Point

if TYPE_CHECKING:
    from monarch_hpc.mesh.instance import Instance

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
    "set_caller",
    "set_context",
]


@dataclass(frozen=True, slots=True)
class ProcInfo:
    """The proc that this code runs in.

    Attributes:
        rank: rank in its proc mesh.
        host: name of the host.
        host_rank: place of the host in the allocation.
        local_rank: place among the procs of its mesh on this host.
        gpus: GPU indices of this proc, its own first. For a program: what its variables name (CUDA_VISIBLE_DEVICES and
            such); where there are none those of the machine, in a Slurm job none.
        slurm_job_id: number of the Slurm job that it runs in; empty where there is none.
        slurm: what else Slurm calls its place.
        cpus: CPU numbers that it may run on; of those that were granted to the host.
        python: the interpreter that was asked for with `HostMesh.with_python_executable`; else empty.
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
        spawn_rank: where the actor stands in the mesh that was spawned.
        message_rank: where it stands in the mesh that the message was sent to, which may be a slice.
        actor: number of the actor, which owns what it spawns; 0 for the program itself.
        mark: stands for the actor in what this process records, see `telemetry.recorder`.
    """

    actor_name: str
    spawn_rank: Point
    message_rank: Point
    proc: ProcInfo
    actor: int = 0
    mark: int = 0

    @property
    def actor_instance(self) -> Instance:
        """The actor itself: its name, rank and proc, and ways to end it."""
        # By its name: the layers above are not imported from here.
        instance: Instance = importlib.import_module("monarch_hpc.mesh.instance").Instance(self)
        return instance

    @property
    def cancelled(self) -> bool:
        """Whether the caller of the running endpoint waits no longer: it cancelled, or its time is over."""
        caller = _caller.get()
        return caller is not None and (caller.cancelled or self.deadline_left_s == 0.0)

    @property
    def deadline_left_s(self) -> float | None:
        """For how many more seconds the caller of the running endpoint waits; None if it set no limit."""
        deadline_s = deadline()
        return None if deadline_s is None else max(deadline_s - time.monotonic(), 0.0)


class CallerState(Protocol):
    """A call that is being handled, as far as its caller matters."""

    @property
    def cancelled(self) -> bool:
        """Whether the caller is known to have given up."""
        ...

    @property
    def deadline_s(self) -> float | None:
        """When it gives up, in seconds of `time.monotonic`; None if it set no limit."""
        ...


_caller: contextvars.ContextVar[CallerState | None] = contextvars.ContextVar("monarch_hpc_caller", default=None)

_current: contextvars.ContextVar[Context | None] = contextvars.ContextVar("monarch_hpc_context", default=None)
_outside: Context | None = None


def context() -> Context:
    """The context of the running endpoint; outside of endpoints that of the process, which is the program's mostly."""
    return _current.get() or _outside or outside(own_info())


def own_info() -> ProcInfo:
    """What this process knows of its place without being told: host, CPUs, GPUs and Slurm's names."""
    slurm = own_slurm_ids()
    return ProcInfo(
        allocation="",
        run="",
        rank=0,
        num_ranks=1,
        host=slurm.node or platform.node(),
        host_rank=-1,
        local_rank=0,
        gpus=tuple(usable_gpus(own_variables(TELLING_VARIABLES), os.listdir("/dev"), in_job=bool(slurm.job_id))),
        slurm_job_id=slurm.job_id,
        slurm=slurm,
        cpus=tuple(sorted(os.sched_getaffinity(0))),
    )


def outside(info: ProcInfo) -> Context:
    """Make *info* the place of all code of this process that handles no message; return the context that it gets."""
    global _outside
    _outside = Context("controller", Point(0, Extent((), ())), Point(0, Extent((), ())), info)
    return _outside


def set_context(new: Context) -> contextvars.Token[Context | None]:
    """Make *new* the context of the running thread or task."""
    return _current.set(new)


def set_caller(caller: CallerState) -> None:
    """Make *caller* the call that the running thread or task handles."""
    _caller.set(caller)


_seen = False


def note_deadline() -> None:
    """Note that calls which are limited in time are handled in this process."""
    global _seen
    _seen = True


def deadlines_seen() -> bool:
    """Whether there is any point in asking for a `deadline`: the call path of most processes is spared that."""
    return _seen


def deadline() -> float | None:
    """When the caller of the running endpoint gives up, in seconds of `time.monotonic`; None for no limit."""
    caller = _caller.get()
    return None if caller is None else caller.deadline_s


def current_rank() -> Point:
    """Where this actor stands in the mesh that the message was sent to."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """The sizes of the mesh that the message was sent to, by dimension."""
    return context().message_rank.extent.to_dict()


def current_actor_name() -> str:
    """The name given to `spawn`."""
    return context().actor_name
