"""A program's requests about kept meshes to the head of one allocation, and the head's answers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, MutableMapping
from dataclasses import field
from typing import Any

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import AllocationError, TransportError
from monarch_hpc.mesh.program.procs.fleet import Fleet
from monarch_hpc.mesh.program.takeover.roll import ref_of
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.wire.control.kept import KeepMesh, KeptOpened, KeptStopped, MeshKept, OpenKept, StopKept
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady
from monarch_hpc.wire.control.refusal import Refused
from monarch_hpc.wire.proc_key import ProcKey

__all__ = ["KeptReport", "KeptRequests", "KeptWork", "make_kept"]

_Place = tuple[str, int]  # run and mesh


@dataclass(frozen=True, slots=True)
class KeptReport:
    """What a head says of a kept mesh.

    Attributes:
        run: the run that started it.
        mesh: its number.
        name: the name under which it is kept.
        num_ranks: its size.
        alive: its living procs by rank.
        ended: why others have ended, by rank, as far as the head knows.
    """

    run: str
    mesh: int
    name: str
    num_ranks: int
    alive: dict[int, ProcRef] = field(default_factory=dict)
    ended: dict[int, Death] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptWork:
    """What a tenancy does for its requests; on the driver.

    Attributes:
        send: sends a message to the head.
        released: called with the number of a mesh of this program that stays from now on.
        ref: the address of a proc that is ready.
        adopt: takes a living proc of a kept mesh, whose end is reported from now on.
        lost: handles the end of a proc, if the program uses it.
        known: the procs of a mesh of another run that the program uses.
    """

    send: Callable[[Message], None]
    released: Callable[[int], None]
    ref: Callable[[ProcReady], ProcRef]
    adopt: Callable[[ProcKey, ProcRef], None]
    lost: Callable[[ProcEnded], None]
    known: Callable[[str, int], list[ProcKey]]


@dataclass(slots=True)
class _Told:
    ready: ProcReady
    ended: ProcEnded | None = None


class KeptRequests:
    """The requests of one program in one allocation. `keep`, `open` and `stop` for any thread, all else on the driver.

    Args:
        name: the allocation's, for errors.
        run: the program's run there.
        stop_s: config key `procs.stop_s`.
    """

    def __init__(self, engine: Engine, name: str, run: str, stop_s: float, work: KeptWork) -> None:
        self._engine = engine
        self._name = name
        self._run = run
        self._stop_s = stop_s
        self._work = work
        self._numbers = itertools.count(1)
        self._pending: dict[int, tuple[KeepMesh | OpenKept | StopKept, Future[Any]]] = {}
        self._used: dict[str, _Place] = {}  # kept meshes by name
        self._again: dict[int, str] = {}  # requests to open meshes that the head before had opened
        self._told: dict[_Place, dict[int, _Told]] = {}

    def keep(self, mesh: int, name: str, num_ranks: int) -> Future[None]:
        """Have a mesh of this program stay; the future fails with `AllocationError` if the head refuses."""
        return self._ask(lambda number: KeepMesh(self._run, mesh, name, num_ranks, number))

    def open(self, name: str) -> Future[KeptReport]:
        """Use a kept mesh; the future fails with `AllocationError` if there is none of that name."""
        return self._ask(lambda number: OpenKept(self._run, name, number))

    def stop(self, name: str) -> Future[None]:
        """End a kept mesh; the future is done when no proc of it is left."""
        return self._ask(lambda number: StopKept(name, self._stop_s, number))

    def _ask(self, make: Callable[[int], KeepMesh | OpenKept | StopKept]) -> Future[Any]:
        request = make(next(self._numbers))
        future: Future[Any] = Future(self._engine, lambda: f"the kept mesh {request.name}")

        def perform() -> None:
            self._pending[request.number] = request, future
            try:
                self._work.send(request)
            except TransportError as error:
                del self._pending[request.number]
                future.set_exception(AllocationError(self._name, f"its head cannot be reached: {error}"))

        self._engine.call_soon(perform)
        return future

    # ---- the head's messages ----

    def take(self, message: Message) -> bool:
        """Handle a message about kept meshes; False if others have to."""
        match message:
            case ProcReady() if self._is_kept(message):
                self._told.setdefault((message.run, message.mesh), {})[message.proc.rank] = _Told(message)
            case ProcEnded() if self._is_kept(message):
                told = self._told.get((message.run, message.mesh), {}).get(message.proc.rank)
                if told is not None:
                    told.ended = message
                return False
            case MeshKept():
                self._on_kept(message)
            case KeptOpened():
                self._on_opened(message)
            case KeptStopped():
                self._settle(message.number, None)
            case Refused(request="KeepMesh" | "OpenKept" | "StopKept"):
                name = self._again.pop(message.number, None)
                if name is not None:
                    self._end_unknown(self._used.pop(name), set(), message.problem)
                self._settle(message.number, AllocationError(self._name, message.problem))
            case _:
                return False
        return True

    def _is_kept(self, message: ProcReady | ProcEnded) -> bool:
        return message.run != self._run or (message.run, message.mesh) in self._used.values()

    def _on_kept(self, message: MeshKept) -> None:
        request, _ = self._pending.get(message.number, (None, None))
        if request is not None:
            self._used[request.name] = message.run, message.mesh
            self._work.released(message.mesh)
        self._settle(message.number, None)

    def _on_opened(self, message: KeptOpened) -> None:
        place = self._used[message.name] = message.run, message.mesh
        report = KeptReport(message.run, message.mesh, message.name, message.num_ranks)
        for rank, told in self._told.pop(place, {}).items():
            if told.ended is None:
                report.alive[rank] = self._work.ref(told.ready)
                self._work.adopt(told.ready.proc, report.alive[rank])
            else:
                kind = DeathKind.parse(told.ended.kind)
                report.ended[rank] = Death(kind, told.ended.cause, last_lines=tuple(told.ended.last_lines))
        if self._again.pop(message.number, None) is not None:
            self._end_unknown(place, set(report.alive), "it ended while the allocation had no head")
        self._settle(message.number, report)

    def _end_unknown(self, place: _Place, alive: set[int], cause: str) -> None:
        for key in self._work.known(*place):
            if key.rank not in alive:
                self._work.lost(ProcEnded(key, False, cause, []))

    def _settle(self, number: int, outcome: object) -> None:
        _, future = self._pending.pop(number, (None, None))
        if future is None:
            return
        if isinstance(outcome, AllocationError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    # ---- the head's loss ----

    def again(self) -> list[Message]:
        """The requests for the head of a later term: those without an answer, and the meshes in use."""
        self._told.clear()
        self._again = {next(self._numbers): name for name in self._used}
        opened = [OpenKept(self._run, name, number, again=True) for number, name in self._again.items()]
        return [*(request for request, _ in self._pending.values()), *opened]

    def fail(self, cause: str) -> None:
        """End all requests: there is no head any more."""
        for number in list(self._pending):
            self._settle(number, AllocationError(self._name, cause))


def make_kept(
    engine: Engine,
    name: str,
    allocation: str,
    fleet: Fleet,
    procs: MutableMapping[ProcKey, ProcRef],
    send: Callable[[Message], None],
    lost: Callable[[ProcEnded], None],
) -> KeptRequests:
    """Make the requests of a tenancy.

    Args:
        name: name of the allocation; *allocation* is its id.
        fleet: the program's own meshes of procs there.
        procs: the living procs that the program uses.
        send: sends a message to the head.
        lost: handles the end of a proc.
    """

    def ref(ready: ProcReady) -> ProcRef:
        entry = fleet.hosts.get(ready.proc.host)
        return ref_of(ready, f"host {ready.proc.host}" if entry is None else entry.name, allocation)

    def known(run: str, mesh: int) -> list[ProcKey]:
        return [key for key in procs if (key.run, key.mesh) == (run, mesh)]

    work = KeptWork(send, fleet.release, ref, procs.__setitem__, lost, known)
    return KeptRequests(engine, name, fleet.run, fleet.stop_s, work)
