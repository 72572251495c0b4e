"""Opens meshes that other programs have kept."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from monarch_hpc.actor.kept.keeper import ask_proc
from monarch_hpc.actor.messages.payload import region_of
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.arguments import check_text
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.ids import new_incarnation
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.plan import MeshOwner, ProcPlan
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.mesh.program.kept.kept_mesh import KeptMesh
from monarch_hpc.mesh.program.kept.requests import KeptReport
from monarch_hpc.mesh.program.takeover.found_actors import find_actors, free_name
from monarch_hpc.mesh.program.takeover.survey import SurveyedProc, survey
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.serializer import loads

__all__ = ["kept"]

_GONE = "it had ended, or its host was lost, before this program opened the kept mesh"


def kept(name: str, allocation: str | None = None) -> KeptMesh:
    """Use a mesh that a program has kept with `ProcMesh.keep`, or ``monarch-hpc run --keep``.

    Any number of programs may use it at once, and it outlives them all; the deaths of its procs are told to each. It
    ends with `KeptMesh.stop`, ``monarch-hpc mesh stop``, or the allocation.

    Args:
        name: the name under which it is kept; ``monarch-hpc mesh list`` shows all.
        allocation: name of the allocation; None for the one that the program uses.

    Returns:
        The procs, and the actors on them by name. Calls to those that have died end with `ActorDied`.

    Raises:
        AllocationError: there is no mesh of that name, all of its procs are dead, or the allocation cannot be reached.
        TypeError: an argument is not a string.
    """
    check_text("name", name, filled=True)
    if allocation is not None:
        check_text("allocation", allocation, filled=True)
    controller = Controller.instance()
    tenancies = controller.tenancies
    tenancy = tenancies.default() if allocation is None else tenancies.named(allocation)
    opening = tenancy.kept.open(name)
    # The head of a later term answers once it knows of all hosts.
    if not controller.engine.wait(opening.done, 2 * tenancy.start_s):
        raise AllocationError(tenancy.name, "its head agent does not answer")
    report = opening.result()
    ask = partial(_list_actors, controller)
    found = survey(controller, report.alive.values(), lambda _channel: None, ask, tenancy.start_s)
    about = next((finding.about for finding in found if finding.about), b"")
    if not about:
        causes = [*(death.cause for death in report.ended.values()), *(one.problem for one in found), _GONE]
        problem = f"all {report.num_ranks} procs of the kept mesh {name} are dead: {causes[0]}"
        raise AllocationError(tenancy.name, f"{problem}; 'monarch-hpc mesh stop {name}' frees the name")
    plan, _ = cast(tuple[ProcPlan, MeshOwner | None], loads(about))
    done = Flag(controller.engine)
    procs: dict[int, ProcRef] = {}

    def complete() -> None:
        procs.update(_with_dead(controller, tenancy, report, plan, found))
        done.set()

    controller.engine.call_soon(complete)
    done.wait()
    meshes: dict[str, ActorMesh[Any]] = {}
    problems: dict[str, str] = {}
    for actors in find_actors(found):
        if actors.cls is None:
            problems[actors.name] = actors.problem
        else:
            meshes[free_name(actors.name, meshes)] = actors.mesh(controller.incarnations, procs)
    table = controller.incarnations.of(report.mesh, procs)
    mesh = ProcMesh(plan.name or name, report.mesh, region_of(plan.view), table, controller)
    return KeptMesh(name, report.run, mesh, meshes, problems, partial(tenancy.kept.stop, name))


def _list_actors(controller: Controller, proc: ProcRef, answered: Any) -> None:
    ask_proc(controller, proc, answered, "list")


def _with_dead(
    controller: Controller, tenancy: Tenancy, report: KeptReport, plan: ProcPlan, found: list[SurveyedProc]
) -> Mapping[int, ProcRef]:
    """The procs by rank, also the dead ones, so that calls to them say why; on the driver."""
    procs = dict(report.alive)
    deaths = dict(report.ended)
    for finding in found:
        if finding.problem:
            deaths.setdefault(finding.proc.rank, Death(DeathKind.UNKNOWN, finding.problem))
    for rank in range(report.num_ranks):
        if rank in procs and rank not in deaths:
            continue
        host = plan.hosts[rank // plan.per_host]
        entry = tenancy.hosts.get(host)
        name = f"host {host}" if entry is None else entry.name
        death = deaths.get(rank, Death(DeathKind.UNKNOWN, _GONE))
        if rank not in procs:
            procs[rank] = ProcRef(report.mesh, rank, name, host, 0, new_incarnation(), (), 0, tenancy.allocation)
        controller.node.bar(procs[rank].incarnation, death.cause)
        controller.deaths.record(procs[rank].incarnation, death)
    return procs
