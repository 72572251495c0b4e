"""Reports of deaths to the actors that have started the procs, or to the program."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.mesh.plan import MeshOwner
from monarch_hpc.mesh.program.procs.deaths import Deaths
from monarch_hpc.mesh.program.procs.fleet import Fleet
from monarch_hpc.mesh.program.procs.quarantine import Quarantine
from monarch_hpc.wire.control.procs import ProcEnded

__all__ = ["DeathReports", "calls_of", "cause_of"]


class DeathReports:
    """Tells who supervises a mesh of procs of deaths in it.

    Args:
        deaths: causes by incarnation.
        fleet: the meshes of procs.
        place: names a host in words.
    """

    def __init__(
        self, runtime: Runtime, deaths: Deaths, fleet: Callable[[], Fleet], place: Callable[[str], str]
    ) -> None:
        self._runtime = runtime
        self._deaths = deaths
        self._fleet = fleet
        self._place = place

    def record(self, proc: ProcRef, death: Death, owner: MeshOwner | None) -> None:
        """Record the cause of a death; report it to *owner*, unless it was expected."""
        self._deaths.record(proc.incarnation, replace(death, host=proc.host, rank=proc.rank))
        if Quarantine.current is not None and not death.expected:
            Quarantine.current.on_death(proc, death.running)
        if owner is not None and not death.expected:
            self.tell_owner(owner, proc, death)

    def tell(self, proc: ProcRef, death: Death) -> None:
        """Report a death that a restart was to mend; the program's own meshes have no other supervisor."""
        owner = self._fleet().owner_of(proc.mesh)
        if owner is not None:
            self.tell_owner(owner, proc, death)
        else:
            self._runtime.failures.unhandled(self._failure_of(proc, death))

    def tell_owner(self, owner: MeshOwner, proc: ProcRef, death: Death) -> None:
        """Report a death to the actor that started the proc."""
        line = self._runtime.connections.open_line(owner.proc)
        if line is not None:
            self._runtime.replier.report(line, owner.actor, proc.mesh, self._failure_of(proc, death))

    def _failure_of(self, proc: ProcRef, death: Death) -> MeshFailure:
        name = self._fleet().name_of(proc.mesh) or "procs"
        where = f"proc {proc.rank} of {name} on {self._place(proc.host)}"
        return MeshFailure(name, proc.rank, where, death.cause, kind=death.kind)


def cause_of(ended: ProcEnded, reason: str) -> str:
    """Why a proc has ended; *reason* is what the one said who stopped its mesh, empty if nobody did."""
    if not ended.expected or (ended.kind != DeathKind.STOPPED.value and not reason):
        return ended.cause  # or why its host is lost, because of which it was asked to end
    return f"it was stopped: {reason}" if reason else "it was stopped"


def calls_of(ended: ProcEnded) -> tuple[tuple[int, int], ...]:
    """The calls that a proc was handling when it ended: incarnation of the caller, and its number."""
    with contextlib.suppress(ValueError):  # an agent's words are checked here, where they become numbers
        return tuple((int(caller or "0", 16), int(number)) for caller, number in ended.running)
    return ()
