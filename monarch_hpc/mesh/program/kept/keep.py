"""Has meshes of procs stay when their run ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from monarch_hpc.actor.kept.keeper import KEEPER, ask_proc, pack_request
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import AllocationError, MonarchError, ProcDied, TransportError
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy
from monarch_hpc.transport.engine.flag import Flag
from monarch_hpc.wire.frames import Frame, Kind
from monarch_hpc.wire.serializer import dumps

__all__ = ["keep_at_end", "keep_procs"]


def keep_procs(runtime: Runtime, tenancy: Tenancy, mesh: int, name: str) -> None:
    """Keep a mesh of this program as *name*; blocks until all its hosts know.

    Raises:
        AllocationError: the name is taken, or no name of a kept mesh; or the allocation ends with this program.
        ProcDied: all its procs are dead.
        RuntimeError: an actor has started it.
        ValueError: it has a restart policy.
    """
    plan, owner = tenancy.fleet.request_of(mesh)
    if owner is not None:
        raise RuntimeError("an actor has started these procs, and they end with it; only the program's own can be kept")
    if plan.restart is not None:
        raise ValueError("these procs have a restart policy, which ends with their program: they cannot be kept")
    if not tenancy.outlives:
        raise AllocationError(tenancy.name, "it ends with this program, and so do all procs: nothing can be kept")
    living = {proc.incarnation for proc in list(tenancy.procs.values())}
    procs = {rank: proc for rank, proc in tenancy.fleet.procs_of(mesh).items() if proc.incarnation in living}
    about = dumps((replace(plan, bootstrap=None), None))[0]
    if not _share(runtime, procs, about, tenancy.start_s):
        raise ProcDied(f"{plan.name or 'procs'}", "none of these procs lives")
    failpoint("program.keep")
    future = tenancy.kept.keep(mesh, name, len(plan.hosts) * plan.per_host)
    if not runtime.engine.wait(future.done, tenancy.start_s):
        raise AllocationError(tenancy.name, f"its head has not answered within {tenancy.start_s:.0f} s")
    future.result()
    for proc in procs.values():
        line = runtime.connections.open_line(proc.incarnation)
        if line is not None:
            try:
                line.send(Frame(Kind.CALL, KEEPER, 0, pack_request("release")))
            except TransportError:
                continue  # it has died; whoever opens the mesh is told


def _share(runtime: Runtime, procs: Mapping[int, ProcRef], about: bytes, limit_s: float) -> bool:
    """Have procs serve the programs of all runs; tell whether one of them lives."""
    left, done = set(procs), Flag(runtime.engine)
    shared: list[int] = []

    def answered(rank: int, answer: Frame | MonarchError) -> None:
        if isinstance(answer, Frame) and answer.kind is Kind.RESULT:
            shared.append(rank)
        left.discard(rank)
        if not left:
            done.set()

    for rank, proc in procs.items():
        ask_proc(runtime, proc, partial(answered, rank), "share", about)
    if procs and not done.wait(limit_s):
        late = min(left)
        raise ProcDied(f"proc {late} on {procs[late].host}", f"it has not answered within {limit_s:.0f} s")
    return bool(shared)


def keep_at_end(runtime: Runtime, tenancy: Tenancy) -> list[str]:
    """Keep the program's meshes that have names, as it ends; return why some could not be kept."""
    problems = []
    for mesh, _hosts in tenancy.fleet.meshes():
        try:
            plan, owner = tenancy.fleet.request_of(mesh)
        except KeyError:
            continue  # it has just ended
        if owner is not None or not plan.name:
            continue
        try:
            keep_procs(runtime, tenancy, mesh, plan.name)
        except (MonarchError, RuntimeError, ValueError) as error:
            problems.append(f"{plan.name} is not kept: {error}")
    return problems
