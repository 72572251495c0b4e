"""Routes failures of actors and procs to their owners, and stops everything that an ended owner has spawned."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from monarch_hpc.actor.cell.cell import Cell
from monarch_hpc.actor.cell.replies import Replier
from monarch_hpc.actor.fault import MeshFailure, print_error
from monarch_hpc.actor.messages.causes import Causes
from monarch_hpc.actor.messages.connections import Connections
from monarch_hpc.actor.messages.pending import Answer
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.messages.sent_failures import unpack_fault
from monarch_hpc.actor.runtime.death_causes import program_of
from monarch_hpc.actor.runtime.ownership import End, OwnedMesh, Ownership
from monarch_hpc.core.death import DeathKind
from monarch_hpc.core.errors import ActorDied, SupervisionError, TransportError
from monarch_hpc.wire.frames import Frame

__all__ = ["FailureRouter"]


class FailureRouter:
    """Routes the failures of everything that was spawned here.

    Args:
        cells: actors of this process by number.
        stop: stops an actor of any process after all messages queued for it; calls back when it is gone.
        unhandled: takes failures that no actor of this process owns; None to report them to the program.
    """

    def __init__(
        self,
        ownership: Ownership,
        connections: Connections,
        causes: Causes,
        replier: Replier,
        cells: Mapping[int, Cell],
        stop: Callable[[ProcRef, int, Answer], None],
        unhandled: Callable[[MeshFailure], None] | None = None,
    ) -> None:
        self.unhandled = unhandled or self._report_to_program
        self._ownership = ownership
        self._connections = connections
        self._causes = causes
        self._replier = replier
        self._cells = cells
        self._stop = stop

    def on_death(self, owned: OwnedMesh, rank: int, incarnation: int, reported: bool, error: SupervisionError) -> None:
        """Handle the loss of a proc with an actor that was spawned here."""
        cause = str(getattr(error, "cause", error))
        kind = error.kind if isinstance(error, ActorDied) else DeathKind.UNKNOWN
        if not self._causes.was_stopped(incarnation, cause):
            failure = MeshFailure(owned.name, rank, owned.where(rank), cause, class_name=owned.class_name, kind=kind)
            self._notify_owner(owned.owner, failure, reported=reported)

    def on_fault(self, frame: Frame) -> None:
        """Handle the failure of a remote actor that no call reports."""
        actor, failure = unpack_fault(frame)
        # Once for each rank, even if its proc dies later.
        owner = self._ownership.fail(actor, failure.rank) if actor else 0
        if owner is not None:
            known = self._ownership.class_of(actor)
            self._notify_owner(owner, replace(failure, class_name=known) if known else failure, reported=False)

    def _notify_owner(self, owner: int, failure: MeshFailure, *, reported: bool) -> None:
        cell = self._cells.get(owner)
        if cell is not None:
            cell.supervise(failure, reported=reported)
        elif not owner and not reported:  # an owner that has ended has stopped everything it owned
            self.unhandled(failure)

    def adopt(self, owner: int, name: str, mesh: int, procs: Mapping[int, ProcRef], end: End) -> None:
        """Make *owner* the owner of *procs*: it gets their failures, and they end with it.

        Args:
            end: requests their end, and calls back when they are gone; called at once if the owner has ended meanwhile.
        """
        self._ownership.add(mesh, owner, name, procs, end)
        cell = self._cells.get(owner)
        if owner and (cell is None or cell.ending):
            self.stop_owned(owner)

    def _report_to_program(self, failure: MeshFailure) -> None:
        program = program_of(self._connections.node)
        if program is not None:
            self._replier.report(self._connections.line_to(program), 0, 0, failure)
            return
        print_error(f"monarch-hpc: {failure.report()}")

    def stop_owned(self, owner: int, gone: Callable[[], None] = lambda: None) -> None:
        """Stop everything that an actor has spawned, as nothing outlives its owner; call *gone* when it is gone."""
        left = {0}  # needs no lock: set operations are atomic
        numbers = itertools.count(1)

        def leave(number: int, _answer: object = None) -> None:
            left.discard(number)
            if not left:
                gone()

        for owned in self._ownership.of(owner):
            if owned.end is not None:
                self._ownership.remove(owned.actor)
                left.add(number := next(numbers))
                owned.end(partial(leave, number))
                continue
            for rank in list(owned.ranks.values()):
                left.add(number := next(numbers))
                try:
                    self._stop(owned.procs[rank], owned.actor, partial(leave, number))
                except TransportError:
                    leave(number)  # it is gone already
        leave(0)
