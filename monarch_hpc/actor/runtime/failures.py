"""Routes failures of actors and procs to their owners, and stops everything that an ended owner has spawned."""

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
    """The part of the runtime that handles failures; a mixin with the interface that it needs."""

    ownership: Ownership

    @property
    def node(self) -> Node:
        """The node, which holds the channels."""
        ...

    def line_to(self, proc: ProcRef) -> MessageLink:
        """Return the link to *proc*; connect if there is none."""
        ...

    def stop(self, proc: ProcRef, actor: int, answer: Answer | None = None) -> None:
        """Stop an actor after all messages queued for it."""
        ...

    def cell(self, actor: int) -> Cell | None:
        """Return an actor of this process by its number; None if it has none."""
        ...

    def report(self, channel: MessageLink, owner: int, actor: int, failure: MeshFailure) -> None:
        """Report the failure of *actor* to the process that spawned it."""
        ...

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """Whether the proc ended because it was asked to."""
        ...

    def on_death(self, owned: OwnedMesh, rank: int, incarnation: int, reported: bool, error: ActorError) -> None:
        """Handle the loss of a proc with an actor that was spawned here."""
        cause = str(getattr(error, "cause", error))
        if not self.was_stopped(incarnation, cause):
            self._notify_owner(owned.owner, MeshFailure(owned.name, rank, owned.where(rank), cause), reported=reported)

    def on_fault(self, frame: Frame) -> None:
        """Handle the failure of a remote actor that no call reports."""
        actor, failure = unpack_fault(frame)
        # Once for each rank, even if its proc dies later.
        owner = self.ownership.fail(actor, failure.rank) if actor else 0
        if owner is not None:
            self._notify_owner(owner, failure, reported=False)

    def _notify_owner(self, owner: int, failure: MeshFailure, *, reported: bool) -> None:
        cell = self.cell(owner)
        if cell is not None:
            cell.supervise(failure, reported=reported)
        elif not owner and not reported:  # an owner that has ended has stopped everything it owned
            self.unhandled(failure)

    def adopt(self, owner: int, name: str, mesh: int, procs: Mapping[int, ProcRef], end: Callable[[], None]) -> None:
        """Make *owner* the owner of *procs*: it gets their failures, and they end with it.

        Args:
            end: requests their end without waiting; called at once if the owner has ended meanwhile.
        """
        self.ownership.add(mesh, owner, name, procs, end)
        cell = self.cell(owner)
        if owner and (cell is None or cell.ending):
            self.stop_owned(owner)

    def disown(self, mesh: int) -> None:
        """Forget a mesh of procs that was asked to end."""
        self.ownership.remove(mesh)

    def unhandled(self, failure: MeshFailure) -> None:
        """Report a failure that no actor of this process owns to the program."""
        program = program_of(self.node)
        if program is not None:
            self.report(self.line_to(program), 0, 0, failure)
            return
        print_error(f"monarch-hpc: {failure.report()}")

    def stop_owned(self, owner: int) -> None:
        """Stop everything that an actor has spawned: nothing outlives its owner."""
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
