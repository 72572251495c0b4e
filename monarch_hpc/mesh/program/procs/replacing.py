"""Replaces dead procs: orders new ones, makes their actors again, and announces them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.death import Death
from monarch_hpc.core.errors import SpawnError, TransportError
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.mesh.healing.revivals import Revivals, Work
from monarch_hpc.mesh.healing.revive import end_proc, made_again, prepare
from monarch_hpc.mesh.program.allocations.absences import HostAbsences
from monarch_hpc.mesh.program.procs.announcements import Announcements
from monarch_hpc.mesh.program.procs.deaths import Deaths
from monarch_hpc.mesh.program.procs.fleet import Fleet

__all__ = ["make_revivals"]

_REPORT_S = 5.0
"""Beyond its own deadline, how long an agent may take to report that a proc has not started; and how long the report of
a death may take, of a proc that cannot be reached. It takes milliseconds."""


def make_revivals(
    runtime: Runtime,
    deaths: Deaths,
    start_s: float,
    announcements: Announcements,
    fleet: Callable[[], Fleet],
    absences: HostAbsences,
    report_failure: Callable[[ProcRef, Death], None],
) -> Revivals:
    """The revivals of the procs of a fleet, which does not exist yet.

    Args:
        deaths: causes of death.
        start_s: config key `procs.start_s`.
        announcements: those of the program.
        absences: the hosts that are lost; procs are not ordered on one that is about to return.
        report_failure: reports that a dead proc stays dead, and why.
    """
    engine = runtime.engine
    prepared: dict[int, set[int]] = {}  # incarnation -> numbers of the actors that were made in it

    def start(proc: ProcRef, restarts: int) -> None:
        waited: list[bool] = []

        def order() -> None:
            if not waited:
                fleet().order_again(proc, restarts)  # what it raises is handled by the caller
            elif revivals.expects(replace(proc, restarts=restarts)):
                try:
                    fleet().order_again(proc, restarts)
                except (SpawnError, TransportError) as error:
                    fail(f"the request could not be sent: {error}")

        def fail(cause: str) -> None:
            if revivals.expects(replace(proc, restarts=restarts)):
                revivals.on_failed(proc.mesh, proc.rank, cause)

        absences.when_back(fleet().place_of(proc), order, fail)
        waited.append(True)

    def prepare_proc(proc: ProcRef, done: Callable[[str], None]) -> None:
        plan = fleet().request_of(proc.mesh)[0]

        def work() -> None:
            prepared[proc.incarnation] = {owned.actor for owned, _, _ in made_again(runtime, proc)}
            problem = prepare(runtime, plan, proc)
            engine.call_soon(lambda: done(problem))

        # Not on the driver: constructors may take any time, and may call actors themselves.
        _on_thread(work, done)

    def publish(proc: ProcRef, done: Callable[[], None]) -> None:
        made = prepared.pop(proc.incarnation, set())
        actors = []
        for owned, _, place in made_again(runtime, proc):
            if owned.actor in made and runtime.ownership.revive(owned.actor, place, proc):
                actors.append(owned.actor)
        for actor in made.difference(actors):
            with contextlib.suppress(TransportError):  # its mesh was stopped meanwhile
                runtime.stop(proc, actor)
        runtime.ownership.revive(proc.mesh, proc.rank, proc)
        runtime.incarnations.replace(proc, [proc.mesh, *actors])
        announcements.announce(proc, actors, done)

    def end(proc: ProcRef) -> None:
        prepared.pop(proc.incarnation, None)
        _on_thread(lambda: end_proc(runtime, proc), lambda _problem: None)

    def failed(proc: ProcRef, cause: str, told: bool) -> None:
        death = deaths.revise(proc.incarnation, cause)
        if not told:
            report_failure(proc, death)

    def reachable(proc: ProcRef) -> bool:
        channel = runtime.node.channels.get(proc.incarnation)
        return channel is not None and channel.error is None

    work = Work(
        clock=engine.clock,
        later=engine.call_later,
        start=start,
        prepare=prepare_proc,
        publish=publish,
        end=end,
        failed=failed,
        reachable=reachable,
    )
    revivals = Revivals(work, start_s + _REPORT_S, _REPORT_S)
    return revivals


def _on_thread(work: Callable[[], None], refused: Callable[[str], None]) -> None:
    try:
        Thread(work)
    except RuntimeError as error:  # the process has no threads left, or the interpreter is ending
        refused(str(error))
