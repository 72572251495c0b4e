"""Combines the reports of all processes: each actor's call, its caller, its waits, and deadlocks. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.layout import CAST
from monarch_hpc.telemetry.views.tally import Tally, tally
from monarch_hpc.wire.tables.calls import PROGRAM_MESH, ActorSeen, CallsSeen, ProcCalls, RunningCall, SentCall, Wait
from monarch_hpc.wire.tables.columns import numbers_of, spread

__all__ = ["Picture", "Row", "draw"]

SETTLED_S = 0.5
"""Younger waits never count as a deadlock: hosts report at different moments, and a call may be in flight."""

_OWN = 256
"""Actor numbers below this are built into every program; spawned actors have random numbers."""

_RECORDS = ("ready", "stopped")
"""States in which a proc has records to read."""

_MAX_TARGETS = 3
"""Upper bound on the callees named in one row."""

_NOTHING = RunningCall("0", "", 0, "", "", 0.0, 0.0)

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
class _Edge:
    """One actor waits for another."""

    target: _Key
    runs: bool
    age_s: float


def draw(procs: Sequence[ProcCalls]) -> Picture:
    """Combine the reports of *procs*, which may come in any order and repeat."""
    return Picture(CallsSeen.of(procs))


class Picture:
    """The combined state of all processes. Each part is made when it is looked at, and rows for each process apart.

    Args:
        reports: those of all processes, which may repeat.

    Attributes:
        calls: the reports, each process once.
    """

    def __init__(self, reports: CallsSeen) -> None:
        self.calls = calls = _each_once(reports)
        processes = calls.processes
        self._meshes, self._ranks, self._hosts = (processes.column(name) for name in ("mesh", "rank", "host"))
        self._states = processes.column("state")
        self._incarnations = processes.column("incarnation")

    @cached_property
    def _order(self) -> list[int]:
        """Places of the processes in `calls`, by run, mesh and rank."""
        keys = list(zip(self.calls.processes.column("run"), self._meshes, self._ranks, strict=True))
        return sorted(range(len(keys)), key=keys.__getitem__)

    @cached_property
    def _by_incarnation(self) -> Mapping[str, int]:
        """The place of each process that has an incarnation, in `calls`."""
        places = dict(zip(self._incarnations, range(len(self._incarnations)), strict=True))
        places.pop("", None)
        return places

    @cached_property
    def _sent(self) -> Mapping[tuple[str, int], int]:
        """The place of each sent call among all, by incarnation of its caller and its number."""
        return {key: place for place, key in enumerate(self._keys("sent", "call"))}

    def _place_of_actor(self, key: _Key) -> int | None:
        """The place of an actor among all; None if it is not known."""
        process = self._by_incarnation.get(key[0])
        if process is None:
            return None
        places = self.calls.places("actors", process)
        numbers = self.calls.entries("actors").column("actor")
        return next((place for place in places if numbers[place] == key[1]), None)

    def _keys(self, name: str, column: str) -> Iterable[tuple[str, Any]]:
        """Incarnation of the process, and one of the columns, for all entries of a list."""
        return zip(
            spread(self._incarnations, self.calls.lengths(name)), self.calls.entries(name).column(column), strict=True
        )

    @cached_property
    def _running(self) -> Mapping[tuple[str, int], list[_Key]]:
        """The actors that run a call, by incarnation of its caller and its number."""
        found: dict[tuple[str, int], list[_Key]] = {}
        entries = self.calls.entries("running")
        calls = zip(entries.column("caller"), entries.column("call"), strict=True)
        for call, actor in zip(calls, self._keys("running", "actor"), strict=True):
            if call[1]:
                found.setdefault(call, []).append(actor)
        return found

    @cached_property
    def _num_sent(self) -> Mapping[_Key, int]:
        """Number of calls that were sent to each actor alone and are not answered."""
        entries = self.calls.entries("sent")
        return Counter(zip(entries.column("target"), entries.column("target_actor"), strict=True))

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of all processes."""
        return [row for place in self._order for row in self.rows_of(place)]

    @cached_property
    def deadlocks(self) -> list[list[str]]:
        """Rings of actors, in each of which every actor waits for the next and the last for the first."""
        return [[self._label(key) for key in ring] for ring in find_rings(self._edges())]

    @cached_property
    def problems(self) -> list[str]:
        """Processes whose records could not be read, in words."""
        problems = self.calls.processes.column("problem")
        return [
            f"{self._where(place)}: {problems[place]}"
            for place in self._order
            if problems[place] and self._states[place] in _RECORDS
        ]

    @cached_property
    def endpoints(self) -> list[Tally]:
        """Call statistics by endpoint."""
        return tally(self.calls[place] for place in self._order)

    # ---- rows ----

    def rows_of(self, place: int) -> list[Row]:
        """The rows of one process, by its place in `calls`."""
        run, pid, cause = (self.calls.processes.column(name)[place] for name in ("run", "pid", "cause"))
        incarnation, is_program = self._incarnations[place], self._meshes[place] == PROGRAM_MESH
        state, where = self._states[place], self._where(place)
        running: list[RunningCall] = self.calls.list_of("running", place)
        waits: list[Wait] = self.calls.list_of("waits", place)
        actors: list[ActorSeen] = self.calls.list_of("actors", place)

        def row(actor: ActorSeen | None, name: str) -> Row:
            number = "0" if actor is None else actor.actor
            own = [] if actor is None else [call for call in running if call.actor == number]
            awaited = [wait for wait in waits if wait.actor == number] if waits else waits
            first = own[0] if own else _NOTHING
            num_sent = 0 if actor is None else self._num_sent.get((incarnation, number), 0)
            return Row(
                run,
                name,
                where,
                pid,
                _state(state, cause, actor, own, awaited),
                first.endpoint,
                len(own),
                self._caller(first),
                first.age_s,
                self._targets(incarnation, awaited) if awaited else "",
                max(wait.age_s for wait in awaited) if awaited else 0.0,
                max(num_sent - sum(map(_is_counted, own)), 0) if num_sent else 0,
                first.queued_s,
                first.operation,
            )

        found = []
        if is_program or any(wait.actor == "0" for wait in waits):
            found.append(row(None, "program" if is_program else ""))
        for actor in actors:
            made = row(actor, f"{actor.name}[{actor.rank}]")
            if actor.state == "stopped" or (is_program and int(actor.actor, 16) < _OWN and not made.num_running):
                continue
            found.append(made)
        return found or [row(None, "")]

    def _caller(self, call: RunningCall) -> str:
        if not call.caller:
            return ""
        sent = self._sent.get((call.caller, call.call))
        if sent is not None:
            return self._label((call.caller, self.calls.entries("sent").column("actor")[sent]))
        if call.caller not in self._by_incarnation:
            return f"an unknown process on {call.caller_host}"
        return self._label((call.caller, "0"))

    def _targets(self, incarnation: str, waits: Iterable[Wait]) -> str:
        words: list[str] = []
        num = 0
        for wait in waits:
            if not wait.calls:
                words.append(wait.what or "something")
                num += 1
                continue
            num += wait.num_calls
            for call in wait.calls[:_MAX_TARGETS]:
                sent = self._sent_call(incarnation, call)
                if sent is not None and call & CAST:
                    running = self._running.get((incarnation, call), ())
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

    def _sent_call(self, incarnation: str, call: int) -> SentCall | None:
        place = self._sent.get((incarnation, call))
        if place is None:
            return None
        found: list[SentCall] = self.calls.entries("sent").make(place, place + 1)
        return found[0]

    def _target(self, sent: SentCall) -> str:
        key = sent.target, sent.target_actor
        if self._place_of_actor(key) is not None:
            who = self._label(key)
        else:
            who = f"{sent.target_name or 'a port'} on {sent.target_host}"
        return f"{who}.{sent.endpoint}" if sent.endpoint else who

    def _label(self, key: _Key) -> str:
        actor = self._place_of_actor(key)
        if actor is not None:
            actors = self.calls.entries("actors")
            return f"{actors.column('name')[actor]}[{actors.column('rank')[actor]}]"
        place = self._by_incarnation.get(key[0])
        if place is None:
            return "an unknown process"
        if self._meshes[place] == PROGRAM_MESH:
            return f"program on {self._hosts[place]}"
        return f"a thread of {self._where(place)}"

    def _where(self, place: int) -> str:
        host = self._hosts[place]
        return host if self._meshes[place] == PROGRAM_MESH else f"r{self._ranks[place]} {host}"

    # ---- waits and deadlocks ----

    def _edges(self) -> dict[_Key, list[_Edge]]:
        """The calls for which actors wait of other actors that wait, by the first of them."""
        waits, sent = self.calls.entries("waits"), self.calls.entries("sent")
        states = spread(self._states, self.calls.lengths("waits"))
        # Calls to a dead proc fail; threads outside of actors do not wait for each other.
        columns = zip(self._keys("waits", "actor"), states, waits.column("calls"), waits.column("age_s"), strict=True)
        waiting = [wait for wait in columns if wait[1] != "ended" and wait[0][1] != "0"]
        edges: dict[_Key, list[_Edge]] = {key: [] for key, *_ in waiting}
        incarnations, actors = sent.column("target"), sent.column("target_actor")
        for key, _, numbers, age_s in waiting:
            for number in numbers_of(numbers):
                call = key[0], number
                place = self._sent.get(call)
                if place is None:
                    continue
                # For a cast, only the callees that run it are known; the others may have answered or not begun.
                some = self._running.get(call, ()) if number & CAST else [(incarnations[place], actors[place])]
                edges[key] += [_Edge(target, call in self._running, age_s) for target in some if target in edges]
        return edges


def _is_counted(call: RunningCall) -> bool:
    """Whether a call that runs is among those that its caller has sent to this actor alone, and wants answers to."""
    return call.call != 0 and not call.call & CAST


def _each_once(reports: CallsSeen) -> CallsSeen:
    """Leave out processes that have been reported before: programs on the head's machine are read, and may answer."""
    named = [one for one in reports.processes.column("incarnation") if one]
    if len(named) == len(set(named)):
        return reports
    known: set[str] = set()
    kept: list[ProcCalls] = []
    for one in reports:
        if not one.scene.incarnation or one.scene.incarnation not in known:
            kept.append(one)
            known.add(one.scene.incarnation)
    return CallsSeen.of(kept)


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


def _state(
    proc_state: str, cause: str, actor: ActorSeen | None, running: Sequence[RunningCall], waits: Sequence[Wait]
) -> str:
    match proc_state:
        case "ended":
            return f"dead: {cause}"
        case "stopped":
            return "stopped by a signal"
        case "starting" | "stopping":
            return proc_state
    if actor is not None and actor.state == "failed":
        return f"failed: {actor.cause}"
    if actor is not None and actor.state == "spawned":
        return "constructing"
    return "waiting" if waits else "running" if running else "idle"
