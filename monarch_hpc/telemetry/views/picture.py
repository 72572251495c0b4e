"""Combines the reports of all processes: each actor's call, its caller, its waits, and deadlocks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.views.tally import Tally, tally
from monarch_hpc.wire.tables.calls import PROGRAM_MESH, ActorSeen, ProcCalls, RunningCall, SentCall, Wait

__all__ = ["Picture", "Row", "draw"]

SETTLED_S = 0.5
"""Younger waits never count as a deadlock: hosts report at different moments, and a call may be in flight."""

_OWN = 256
"""Actor numbers below this are built into every program; spawned actors have random numbers."""

_RECORDS = ("ready", "stopped")
"""States in which a proc has records to read."""

_MAX_TARGETS = 3
"""Upper bound on the callees named in one row."""

_Key = tuple[str, str]
"""Incarnation of a process, and number of an actor in it; 0 for code outside of actors."""


@dataclass(frozen=True, slots=True)
class Row:
    """One actor, one program, or one proc without actors.

    Attributes:
        actor: name and rank; ``program``; or empty for a proc without actors.
        proc: rank and host of the proc; for a program, its host.
        state: ``idle``, ``running``, ``waiting``, ``starting``, ``stopping``, ``stopped by a signal``, ``dead: cause``,
            ``failed: cause`` or ``constructing``.
        endpoint: the running endpoint; the oldest if there are several.
        num_running: number of running calls.
        caller: the caller of that endpoint; empty if there is none or it is unknown.
        runs_s: seconds since that endpoint began.
        queued_s: seconds for which that call was queued before.
        operation: what that call does, if it says so.
        waits_for: what the actor waits for, in words; empty if it does not wait.
        waits_s: seconds since the wait began.
        num_queued: calls sent to the actor that want an answer and do not run yet.
    """

    run: str
    actor: str
    proc: str
    pid: int
    state: str
    endpoint: str
    num_running: int
    caller: str
    runs_s: float
    waits_for: str
    waits_s: float
    num_queued: int
    queued_s: float
    operation: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The combined state of all processes.

    Attributes:
        deadlocks: rings of actors, in each of which every actor waits for the next and the last for the first.
        problems: processes whose records could not be read, in words.
        endpoints: call statistics by endpoint.
    """

    rows: list[Row]
    deadlocks: list[list[str]]
    problems: list[str]
    endpoints: list[Tally]


@dataclass(frozen=True, slots=True)
class _Edge:
    """One actor waits for another."""

    target: _Key
    runs: bool
    age_s: float


def draw(procs: Sequence[ProcCalls]) -> Picture:
    """Combine the reports of *procs*, which may come in any order and repeat."""
    return _Drawing(procs).picture()


class _Drawing:
    def __init__(self, procs: Sequence[ProcCalls]) -> None:
        self._procs: list[ProcCalls] = []
        known: set[str] = set()
        for proc in sorted(procs, key=lambda proc: (proc.run, proc.mesh, proc.rank)):
            if not proc.scene.incarnation or proc.scene.incarnation not in known:
                self._procs.append(proc)
                known.add(proc.scene.incarnation)
        self._by_incarnation = {proc.scene.incarnation: proc for proc in self._procs if proc.scene.incarnation}
        self._actors = {
            (proc.scene.incarnation, actor.actor): actor
            for proc in self._procs
            for actor in proc.scene.actors
            if proc.scene.incarnation
        }
        self._sent = {(proc.scene.incarnation, call.call): call for proc in self._procs for call in proc.scene.sent}
        self._running: dict[tuple[str, int], list[_Key]] = {}
        for proc in self._procs:
            for call in proc.scene.running:
                if call.call:
                    self._running.setdefault((call.caller, call.call), []).append((proc.scene.incarnation, call.actor))
        self._num_sent = Counter((call.target, call.target_actor) for call in self._sent.values())
        self._num_running = Counter(
            (proc.scene.incarnation, call.actor)
            for proc in self._procs
            for call in proc.scene.running
            if call.call and not call.call & CAST
        )

    def picture(self) -> Picture:
        rows = [row for proc in self._procs for row in self._rows(proc)]
        rings = [[self._label(key) for key in ring] for ring in find_rings(self._edges())]
        problems = [
            f"{_where(proc)}: {proc.scene.problem}"
            for proc in self._procs
            if proc.scene.problem and proc.state in _RECORDS
        ]
        return Picture(rows, rings, problems, tally(self._procs))

    # ---- rows ----

    def _rows(self, proc: ProcCalls) -> list[Row]:
        found = []
        is_program = proc.mesh == PROGRAM_MESH
        if is_program or any(wait.actor == "0" for wait in proc.scene.waits):
            found.append(self._row(proc, None, "program" if is_program else ""))
        for actor in proc.scene.actors:
            row = self._row(proc, actor, f"{actor.name}[{actor.rank}]")
            if actor.state == "stopped" or (is_program and int(actor.actor, 16) < _OWN and not row.num_running):
                continue
            found.append(row)
        return found or [self._row(proc, None, "")]

    def _row(self, proc: ProcCalls, actor: ActorSeen | None, name: str) -> Row:
        number = "0" if actor is None else actor.actor
        key = proc.scene.incarnation, number
        running = [] if actor is None else [call for call in proc.scene.running if call.actor == number]
        waits = [wait for wait in proc.scene.waits if wait.actor == number]
        return Row(
            run=proc.run,
            actor=name,
            proc=_where(proc),
            pid=proc.pid,
            state=_state(proc, actor, running, waits),
            endpoint=running[0].endpoint if running else "",
            num_running=len(running),
            caller=self._caller(running[0]) if running else "",
            runs_s=running[0].age_s if running else 0.0,
            waits_for=self._targets(proc, waits),
            waits_s=max((wait.age_s for wait in waits), default=0.0),
            num_queued=max(self._num_sent[key] - self._num_running[key], 0) if actor is not None else 0,
            queued_s=running[0].queued_s if running else 0.0,
            operation=running[0].operation if running else "",
        )

    def _caller(self, call: RunningCall) -> str:
        if not call.caller:
            return ""
        sent = self._sent.get((call.caller, call.call))
        if sent is not None:
            return self._label((call.caller, sent.actor))
        proc = self._by_incarnation.get(call.caller)
        if proc is None:
            return f"an unknown process on {call.caller_host}"
        return self._label((call.caller, "0"))

    def _targets(self, proc: ProcCalls, waits: Iterable[Wait]) -> str:
        words: list[str] = []
        num = 0
        for wait in waits:
            if not wait.calls:
                words.append(wait.what or "something")
                num += 1
                continue
            num += wait.num_calls
            for call in wait.calls[:_MAX_TARGETS]:
                sent = self._sent.get((proc.scene.incarnation, call))
                if sent is not None and call & CAST:
                    running = self._running.get((proc.scene.incarnation, call), ())
                    words += [f"{self._label(key)}.{sent.endpoint}" for key in running[:_MAX_TARGETS]]
                    num += max(len(running) - 1, 0)
                    if not running:
                        words.append(
                            f"{sent.target_name}.{sent.endpoint} of {sent.num_receivers} ranks, which none runs"
                        )
                elif sent is not None:
                    words.append(self._target(sent))
        named = words[:_MAX_TARGETS]
        return ", ".join(named) + (f" and {num - len(named)} more" if num > len(named) else "")

    def _target(self, sent: SentCall) -> str:
        key = sent.target, sent.target_actor
        if key in self._actors:
            who = self._label(key)
        else:
            who = f"{sent.target_name or 'a port'} on {sent.target_host}"
        return f"{who}.{sent.endpoint}" if sent.endpoint else who

    def _label(self, key: _Key) -> str:
        actor = self._actors.get(key)
        if actor is not None:
            return f"{actor.name}[{actor.rank}]"
        proc = self._by_incarnation.get(key[0])
        if proc is None:
            return "an unknown process"
        return f"program on {proc.host}" if proc.mesh == PROGRAM_MESH else f"a thread of {_where(proc)}"

    # ---- waits and deadlocks ----

    def _edges(self) -> dict[_Key, list[_Edge]]:
        edges: dict[_Key, list[_Edge]] = {}
        for proc in self._procs:
            if proc.state == "ended":
                continue  # calls to a dead proc fail
            for wait in proc.scene.waits:
                # Threads outside of actors do not wait for each other.
                if wait.actor == "0":
                    continue
                for number in wait.calls:
                    sent = self._sent.get((proc.scene.incarnation, number))
                    if sent is not None:
                        running = self._running.get((proc.scene.incarnation, number), [])
                        # For a cast, only the callees that run it are known; the others may have answered or not begun.
                        targets = running if number & CAST else [(sent.target, sent.target_actor)]
                        edges.setdefault((proc.scene.incarnation, wait.actor), []).extend(
                            _Edge(target, bool(running), wait.age_s) for target in targets
                        )
        return edges


def find_rings(edges: Mapping[_Key, Sequence[_Edge]]) -> list[list[_Key]]:
    """Return the rings of actors in which each waits for the next; each actor appears in one ring at most.

    A ring is a deadlock if one of its calls has not begun: if all of them run, the actors handle them concurrently.
    """
    left = {
        key: [edge for edge in some if edge.age_s >= SETTLED_S and edge.target in edges] for key, some in edges.items()
    }
    rings: list[list[_Key]] = []
    while left := _peel(left):
        path: list[_Key] = []
        edge_runs: list[bool] = []
        key = next(iter(left))
        while key not in path:
            path.append(key)
            # Prefer a call that has not begun: that is what blocks the actor.
            edge = min(left[key], key=lambda edge: edge.runs)
            edge_runs.append(edge.runs)
            key = edge.target
        start = path.index(key)
        ring = path[start:]
        if not all(edge_runs[start:]):
            rings.append(ring)
        for gone in ring:
            del left[gone]
    return rings


def _peel(edges: dict[_Key, list[_Edge]]) -> dict[_Key, list[_Edge]]:
    """Keep the actors that wait for a waiting actor, and so on; the rest cannot be in a ring."""
    while True:
        kept = {key: [edge for edge in some if edge.target in edges] for key, some in edges.items()}
        kept = {key: some for key, some in kept.items() if some}
        if len(kept) == len(edges):
            return kept
        edges = kept


def _where(proc: ProcCalls) -> str:
    return proc.host if proc.mesh == PROGRAM_MESH else f"r{proc.rank} {proc.host}"


def _state(proc: ProcCalls, actor: ActorSeen | None, running: Sequence[RunningCall], waits: Sequence[Wait]) -> str:
    match proc.state:
        case "ended":
            return f"dead: {proc.cause}"
        case "stopped":
            return "stopped by a signal"
        case "starting" | "stopping":
            return proc.state
    if actor is not None and actor.state == "failed":
        return f"failed: {actor.cause}"
    if actor is not None and actor.state == "spawned":
        return "constructing"
    return "waiting" if waits else "running" if running else "idle"
