"""Replaces dead procs: orders new ones, makes their actors again, and tells all other procs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from monarch_hpc.actor.messages.proc_ref import ProcRef, replaced
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import TransportError
from monarch_hpc.core.ids import Role
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.mesh.healing.revivals import Revivals, Work
from monarch_hpc.mesh.healing.revive import end_proc, made_again, prepare
from monarch_hpc.mesh.program.deaths import Deaths
from monarch_hpc.mesh.program.fleet import Fleet
from monarch_hpc.transport.api import FrameChannel
from monarch_hpc.wire.control.message import encode
from monarch_hpc.wire.frames import Frame, Kind

__all__ = ["make_revivals", "tell_replacements"]

_REPORT_S = 5.0
"""Beyond its own deadline, how long an agent may take to report that a proc has not started; and how long the report of
a death may take, of a proc that cannot be reached. It takes milliseconds."""


def make_revivals(
    runtime: Runtime,
    deaths: Deaths,
    start_s: float,
    fleet: Callable[[], Fleet],
    report_failure: Callable[[ProcRef, str], None],
) -> Revivals:
    """The revivals of the procs of a fleet, which does not exist yet.

    Args:
        deaths: causes of death.
        start_s: config key `procs.start_s`.
        report_failure: reports that a dead proc stays dead, with the cause.
    """
    engine = runtime.engine
    prepared: dict[int, set[int]] = {}  # incarnation -> numbers of the actors that were made in it

    def prepare_proc(proc: ProcRef, done: Callable[[str], None]) -> None:
        plan = fleet().plan_of(proc.mesh)

        def work() -> None:
            prepared[proc.incarnation] = {owned.actor for owned, _, _ in made_again(runtime, proc)}
            problem = prepare(runtime, plan, proc)
            engine.call_soon(lambda: done(problem))

        # Not on the driver: constructors may take any time, and may call actors themselves.
        _on_thread(work, done)

    def publish(proc: ProcRef) -> None:
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
        for channel in list(runtime.node.channels.values()):
            _tell(channel, proc, actors)

    def end(proc: ProcRef) -> None:
        prepared.pop(proc.incarnation, None)
        _on_thread(lambda: end_proc(runtime, proc), lambda _problem: None)

    def failed(proc: ProcRef, cause: str, told: bool) -> None:
        deaths.revise(proc.incarnation, cause)
        if not told:
            report_failure(proc, cause)

    def reachable(proc: ProcRef) -> bool:
        channel = runtime.node.channels.get(proc.incarnation)
        return channel is not None and channel.error is None

    work = Work(
        clock=engine.clock,
        later=engine.call_later,
        start=lambda proc, restarts: fleet().order_again(proc, restarts),
        prepare=prepare_proc,
        publish=publish,
        end=end,
        failed=failed,
        reachable=reachable,
    )
    return Revivals(work, start_s + _REPORT_S, _REPORT_S)


def tell_replacements(runtime: Runtime, channel: FrameChannel) -> None:
    """Tell a proc, before anything else, which procs have replaced others: references that it gets may be older."""
    for proc, numbers in runtime.incarnations.replacements():
        _tell(channel, proc, [number for number in numbers if number != proc.mesh])


def _tell(channel: FrameChannel, proc: ProcRef, actors: list[int]) -> None:
    if channel.peer.role is Role.PROC and channel.error is None:
        with contextlib.suppress(TransportError):  # it is gone
            channel.send(Frame(Kind.CONTROL, body=encode(replaced(proc, actors))))


def _on_thread(work: Callable[[], None], refused: Callable[[str], None]) -> None:
    try:
        Thread(work)
    except RuntimeError as error:  # the process has no threads left, or the interpreter is ending
        refused(str(error))
