"""Requests for procs as data: the plan, the owner, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SpawnError
from monarch_hpc.supervision.policy import Restart

__all__ = ["HostChoice", "MeshOwner", "Outcome", "ProcPlan", "Started"]


@dataclass(frozen=True, slots=True)
class ProcPlan:
    """The procs requested with `HostMesh.spawn_procs`; sent to the program if an actor requests them.

    Attributes:
        hosts: ranks in the allocation, in the order of the mesh.
        per_host: number of procs on each host.
        name: name of the mesh; may be empty.
        environment: variables to set in each proc.
        preload: modules to import before procs are forked.
        unset: variables to remove in each proc.
        allocation: the allocation of the hosts.
        group: see `HostChoice`.
        bind, bindings, python, mpi: see `wire.messages.SpawnProcs`.
        restart: when procs that have ended are started again; None for never.
        bootstrap: called in each proc before any actor; only for the program's own requests.
        view: the dimensions of the mesh, see `actor.messages.payload.view_of`.
    """

    hosts: tuple[int, ...]
    per_host: int
    name: str
    environment: Mapping[str, str]
    preload: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()
    bind: str = ""
    bindings: tuple[Mapping[str, str], ...] = ()
    python: str = ""
    mpi: bool = False
    allocation: str = ""
    group: int = 0
    restart: Restart | None = None
    bootstrap: object = None
    view: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class HostChoice:
    """Hosts of one allocation.

    Attributes:
        ranks: their ranks in the allocation.
        group: procs of other groups are not affected; 0 affects all. Each `JobTrait.state` has a group of its own.
    """

    allocation: str
    ranks: tuple[int, ...]
    group: int = 0


@dataclass(frozen=True, slots=True)
class MeshOwner:
    """The actor that started procs.

    Attributes:
        proc: incarnation of the actor's process.
        actor: number of the actor in that process.
    """

    proc: int
    actor: int


@dataclass(frozen=True, slots=True)
class Started:
    """A mesh of procs that have started.

    Attributes:
        mesh: number of the mesh in the run.
        procs: the procs by rank.
    """

    mesh: int
    procs: Mapping[int, ProcRef]


Outcome = Started | SpawnError
