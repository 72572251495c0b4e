"""Requests for procs as data: the plan and its parts, the owner, and the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.agent.resources.binding import check_bindings
from monarch_hpc.core.arguments import check_mapping, check_number, check_text, shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import SpawnError
from monarch_hpc.core.shape import Extent
from monarch_hpc.supervision.policy import Restart
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.procs import MAX_PROCS_PER_HOST

__all__ = ["HostChoice", "MeshOwner", "Outcome", "ProcPlan", "Started", "plan_binding", "plan_inner"]


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


def plan_inner(per_host: object, outer: Sequence[str]) -> Extent:
    """Check *per_host*, and return the extent of the procs on one host; *outer* names the dimensions of the hosts."""
    sizes = {} if per_host is None else check_mapping("per_host", per_host, "{'gpus': 4}")
    for label in outer:
        if label in sizes:
            raise ValueError(f"per_host has {label!r}, a dimension of the hosts: give other names, such as 'gpus'")
    extent = Extent.of({label: check_number(f"per_host[{label!r}]", size, least=1) for label, size in sizes.items()})
    if len(extent) > MAX_PROCS_PER_HOST:
        raise ValueError(f"per_host is {extent}, {len(extent)} procs: give at most {MAX_PROCS_PER_HOST} for one host")
    return extent


def plan_binding(
    proc_bind: Sequence[Mapping[str, str]] | str | None, per_host: int, entries: Sequence[HostEntry]
) -> tuple[str, tuple[Mapping[str, str], ...]]:
    """Check *proc_bind* of `HostMesh.spawn_procs`, and return `bind` and `bindings` of `SpawnProcs`."""
    if proc_bind is None:
        return "", ()
    allowed = "'auto', 'none' or a list with one mapping for each proc of a host"
    if isinstance(proc_bind, str):
        if proc_bind not in ("auto", "none"):
            raise ValueError(f"proc_bind is {proc_bind!r}; it is {allowed}")
        return proc_bind, ()
    if isinstance(proc_bind, Mapping) or not isinstance(proc_bind, Iterable):
        raise TypeError(f"proc_bind is {shown(proc_bind)}; it is {allowed}")
    bindings = tuple(
        {
            key: check_text(f"proc_bind[{index}][{key!r}], a list such as '0-3,8' or 'all',", numbers)
            for key, numbers in check_mapping(f"proc_bind[{index}]", binding, "{'cpus': '0-3'}").items()
        }
        for index, binding in enumerate(proc_bind)
    )
    check_bindings(bindings, per_host, {entry.name: entry.cpus for entry in entries})
    return "given", bindings
