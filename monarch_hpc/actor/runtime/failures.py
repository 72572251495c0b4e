"""What becomes of failures of what actors have spawned: the owner is reported, and what it owned ends with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from monarch_hpc.actor.cell.cell import Cell
from monarch_hpc.actor.fault import MeshFailure, print_error
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.actor.messages.payload import unpack_fault
from monarch_hpc.actor.messages.pending import Answer
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import program_of
from monarch_hpc.actor.runtime.ownership import OwnedMesh, Ownership
from monarch_hpc.core.errors import ActorError, TransportError
from monarch_hpc.transport.node import Node
from monarch_hpc.wire.frames import Frame

__all__ = ["FailureRouter"]


class FailureRouter(Protocol):
    """The part of a process's runtime that knows who owns what."""

    ownership: Ownership

    @property
    def node(self) -> Node:
        """The process's seat in the allocation."""
        ...

    def line_to(self, proc: ProcRef) -> MessageLink:
        """The channel to *proc*."""
        ...

    def stop(self, proc: ProcRef, actor: int, answer: Answer | None = None) -> None:
        """End an actor after what is queued for it."""
        ...

    def cell(self, actor: int) -> Cell | None:
        """An actor of this process, by its number."""
        ...

    def report(self, channel: MessageLink, owner: int, actor: int, failure: MeshFailure) -> None:
        """Tell who spawned *actor* that it failed."""
        ...

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """Tell whether the proc ended because it was asked to."""
        ...

    def on_death(self, owned: OwnedMesh, rank: int, incarnation: int, reported: bool, error: ActorError) -> None:
        """The proc of an actor that was spawned here is gone."""
        cause = str(getattr(error, "cause", error))
        if not self.was_stopped(incarnation, cause):
            self._tell_owner(owned.owner, MeshFailure(owned.name, rank, owned.where(rank), cause), reported=reported)

    def on_fault(self, frame: Frame) -> None:
        """An actor of another process has failed, and no call reports it."""
        actor, failure = unpack_fault(frame)
        # Once for each rank, also when its proc dies later.
        owner = self.ownership.fail(actor, failure.rank) if actor else 0
        if owner is not None:
            self._tell_owner(owner, failure, reported=False)

    def _tell_owner(self, owner: int, failure: MeshFailure, *, reported: bool) -> None:
        cell = self.cell(owner)
        if cell is not None:
            cell.supervise(failure, reported=reported)
        elif not owner and not reported:  # an owner that has ended has ended all that it owned
            self.unhandled(failure)

    def adopt(self, owner: int, name: str, mesh: int, procs: Mapping[int, ProcRef], end: Callable[[], None]) -> None:
        """Make *owner* the one who is told of failures of *procs*, and with whom they end.

        Args:
            end: asks for their end, and waits for nothing; called at once if the owner has ended meanwhile.
        """
        self.ownership.add(mesh, owner, name, procs, end)
        cell = self.cell(owner)
        if owner and (cell is None or cell.ending):
            self.stop_owned(owner)

    def disown(self, mesh: int) -> None:
        """These procs end because they were asked to."""
        self.ownership.remove(mesh)

    def unhandled(self, failure: MeshFailure) -> None:
        """No actor of this process owns what failed: the program is told."""
        program = program_of(self.node)
        if program is not None:
            self.report(self.line_to(program), 0, 0, failure)
            return
        print_error(f"monarch-hpc: {failure.report()}")

    def stop_owned(self, owner: int) -> None:
        """Stop all that an actor has spawned: nothing outlives its owner."""
        for owned in self.ownership.of(owner):
            if owned.end is not None:
                self.ownership.remove(owned.actor)
                owned.end()
                continue
            for rank in list(owned.ranks.values()):
                try:
                    self.stop(owned.procs[rank], owned.actor)
                except TransportError:
                    continue  # it is gone already
