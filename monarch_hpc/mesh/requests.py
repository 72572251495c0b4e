"""Requests for hosts, procs, log settings and causes of death, made by the program and by its procs alike.

Only the program has a channel to the head. So procs send these requests to the *deputy*, an actor in the program, which
answers even while the program's own code is busy. Requests are answered as their results arrive and do not wait for
each other. The functions below the actor make the requests: directly in the program, through the deputy in a proc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar, runtime_checkable

from monarch_hpc.actor.cell.invocation import ResponsePort
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.payload import pack_spawn
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.death_causes import DEPUTY, program_of
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.errors import SpawnError
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.output.choice import LogChoice, LogRequests
from monarch_hpc.mesh.program.deaths import Deaths
from monarch_hpc.mesh.program.fleet import Fleet, MeshOwner, Outcome, ProcPlan, Started
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["Program", "ask_hosts", "block", "choose_logs", "done_future", "open_deputy", "start_procs", "stop_procs"]

T = TypeVar("T")

_RECHECK_S = 0.1
"""A proc that another proc reports lost is alive if the program's channel to it is still open after this time: the
kernel closes a dead process's sockets."""


@runtime_checkable
class Program(Protocol):
    """The parts of a runtime that exist only in the program."""

    fleet: Fleet
    deaths: Deaths
    logs: LogRequests


class _Deputy(Actor):
    """Carries out the requests of procs in the program."""

    @endpoint(explicit_response_port=True)
    def spawn_procs(self, port: ResponsePort, plan: ProcPlan, owner: MeshOwner) -> None:
        """Start procs for an actor of another process."""

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, SpawnError):
                port.exception(outcome)
            else:
                port.send(outcome)

        _program()[1].fleet.start(plan, owner, done)

    @endpoint(explicit_response_port=True)
    def stop_procs(self, port: ResponsePort, mesh: int, reason: str) -> None:
        """End procs; answers with the hosts that did not report in time."""
        _program()[1].fleet.stop(mesh, reason, port.send)

    @endpoint(explicit_response_port=True)
    def choose_logs(self, port: ResponsePort, choice: LogChoice) -> None:
        """Apply *choice* to the output of procs."""
        program = _program()[1]
        chosen = program.logs.choose(choice, program.fleet.hosts_of(choice.mesh))

        def done(future: Future[None]) -> None:
            error = future.exception()
            if error is None:
                port.send(None)
            else:
                port.exception(error)

        chosen.add_done_callback(done)

    @endpoint
    def hosts(self) -> dict[int, HostEntry]:
        """Resources granted on each host of the allocation, by rank."""
        return dict(_program()[1].fleet.hosts)

    @endpoint(explicit_response_port=True)
    def why(self, port: ResponsePort, incarnation: int) -> None:
        """Answer with the cause of a proc's death and whether it was asked to end; None if that is not known."""
        runtime, program = _program()

        def recheck() -> None:
            channel = runtime.node.channels.get(incarnation)
            if channel is not None and channel.error is None:  # alive: only the caller's route to it is cut
                port.send(None)

        def perform() -> None:
            runtime.engine.call_later(_RECHECK_S, recheck)
            program.deaths.explain(
                incarnation,
                "",
                lambda died: port.send((str(getattr(died, "cause", died)), program.deaths.was_expected(incarnation))),
                lambda _where, _tell: port.send(None),
            )

        runtime.engine.call_soon(perform)


def open_deputy(runtime: Runtime) -> None:
    """Spawn the actor that serves the procs of the run; once, before the first proc starts."""
    own = runtime.own
    body, buffers = pack_spawn("deputy", _only(own), _Deputy, (), {})
    runtime.spawn("deputy", DEPUTY, 0, {own.rank: own}, body, buffers)


def start_procs(runtime: Runtime, plan: ProcPlan, actor: int) -> Future[Started]:
    """Start procs, which end with *actor*; in the program, 0 makes the program itself their owner.

    The future fails with `SpawnError` if a proc did not start; by then the others are gone.
    """
    future: Future[Started] = Future(runtime.engine, lambda: f"the start of {plan.name or 'procs'}")
    owner = MeshOwner(runtime.own.incarnation, actor)

    def settle(read: Callable[[], Outcome]) -> None:
        try:
            outcome = read()
        except BaseException as error:  # noqa: BLE001 any exception of the request belongs to the future
            future.set_exception(error)
            return
        if isinstance(outcome, SpawnError):
            future.set_exception(outcome)
            return
        if owns:
            # Still on the driver: the next event may be the death of one of these procs, which must find its owner.
            runtime.failures.adopt(
                actor, plan.name or "procs", outcome.mesh, outcome.procs, lambda: _end(runtime, outcome.mesh)
            )
        future.set_result(outcome)

    if isinstance(runtime, Program):
        owns = bool(actor)
        runtime.fleet.start(plan, owner if actor else None, lambda outcome: settle(lambda: outcome))
    else:
        owns = True
        started: Future[Started] = _deputy(runtime).spawn_procs.call_one(plan, owner)
        started.add_done_callback(lambda done: settle(done.result))
    return future


def stop_procs(runtime: Runtime, mesh: int, name: str, reason: str) -> Future[None]:
    """End all procs of a mesh; the future is done when every host has reported that none is left.

    The future fails with `TimeoutError` if a host does not report that in time.
    """
    future: Future[None] = Future(runtime.engine, lambda: f"the end of {name or 'procs'}")

    def settle(read: Callable[[], list[str]]) -> None:
        try:
            late = read()
        except BaseException as error:  # noqa: BLE001 any exception of the request belongs to the future
            future.set_exception(error)
            return
        if late:
            names = ", ".join(late)
            future.set_exception(TimeoutError(f"procs of {name} may still run on {names}: no report in time"))
        else:
            future.set_result(None)

    runtime.ownership.remove(mesh)
    if isinstance(runtime, Program):
        runtime.fleet.stop(mesh, reason, lambda late: settle(lambda: late))
    else:
        stopped: Future[list[str]] = _deputy(runtime).stop_procs.call_one(mesh, reason)
        stopped.add_done_callback(lambda done: settle(done.result))
    return future


def choose_logs(runtime: Runtime, choice: LogChoice) -> Future[None]:
    """Apply *choice* to the output of procs; the future is done when all their agents have applied it."""
    if isinstance(runtime, Program):
        return runtime.logs.choose(choice, runtime.fleet.hosts_of(choice.mesh))
    return _deputy(runtime).choose_logs.call_one(choice)


def ask_hosts(runtime: Runtime) -> dict[int, HostEntry]:
    """Resources granted on each host of the allocation, by rank."""
    if isinstance(runtime, Program):
        return dict(runtime.fleet.hosts)
    found: Future[dict[int, HostEntry]] = _deputy(runtime).hosts.call_one()
    return block(runtime, found)


def block(runtime: Runtime, future: Future[T]) -> T:
    """Wait for *future*; a running event loop of this thread is blocked meanwhile.

    Raises:
        RuntimeError: called on the thread that drives the I/O, or the process is ending.
    """
    if runtime.engine.driving:
        raise RuntimeError("a done-callback must not wait for hosts or procs")
    if not runtime.engine.wait(future.done, None) and not future.done():
        raise RuntimeError("the process is ending")
    return future.result()


def done_future(runtime: Runtime) -> Future[Literal[True]]:
    """A future that is done, with True."""
    future: Future[Literal[True]] = Future(runtime.engine)
    future.set_result(True)
    return future


def _end(runtime: Runtime, mesh: int) -> None:
    """End the procs of an owner that has ended, without waiting for them."""
    if isinstance(runtime, Program):
        runtime.fleet.stop(mesh, "its owner ended", lambda _late: None)
    elif program_of(runtime.node) is not None:  # otherwise all procs of the run are ending anyway
        _deputy(runtime).stop_procs.broadcast(mesh, "its owner ended")


def _program() -> tuple[Runtime, Program]:
    runtime = current_runtime()
    assert isinstance(runtime, Program)  # the deputy runs only in the program
    return runtime, runtime


def _deputy(runtime: Runtime) -> ActorMesh[_Deputy]:
    program = program_of(runtime.node)
    if program is None:
        raise RuntimeError("the connection to the program is lost")
    return ActorMesh("deputy", DEPUTY, _Deputy, _only(program), {program.rank: program})


def _only(proc: ProcRef) -> Region:
    return Region(Extent((), ()), proc.rank, ())
