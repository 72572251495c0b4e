"""Procs as a person sees them, from one picture to the next: what each does, and how much of a CPU it uses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import repeat

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.views.picture import Picture, Row
from monarch_hpc.wire.tables.calls import PROGRAM_MESH, CallsSeen
from monarch_hpc.wire.tables.columns import Columns
from monarch_hpc.wire.tables.procs import ProcRow

__all__ = ["LOOKED_AT", "Key", "ProcSeen", "Sighting", "see"]

LOOKED_AT = ("actors", "running", "waits", "sent")
"""The parts of processes that are looked at, see `wire.tables.calls`."""

Key = tuple[object, ...]
_Told = tuple[ProcRow, float | None, Sequence[Row], Row | None]
_Look = Callable[[Key, int], tuple[ProcRow, float | None, Sequence[Row]]]


class ProcSeen:
    """A proc or a program, with its actors. Most are never shown: what is told of one is found out when it is.

    Args:
        key: its identity from one picture to the next: allocation, host, run, mesh, rank and process id.
        host: allocation and host, as one key.
        look: called with *key* and *place* for the process; the part of a core that it has used since the picture
            before, None in the first one; and its actors.
    """

    __slots__ = ("_look", "_place", "_told", "host", "key")

    def __init__(self, key: Key, host: Key, look: _Look, place: int) -> None:
        self.key = key
        self.host = host
        self._look = look
        self._place = place
        self._told: _Told | None = None

    @property
    def told(self) -> _Told:
        """The process, its use of CPUs, its actors, and the one of them that the line of the process shows."""
        if self._told is None:
            process, cpu, rows = self._look(self.key, self._place)
            self._told = process, cpu, rows, _busiest(rows)
        return self._told

    @property
    def allocation(self) -> str:
        """The name of its allocation."""
        return str(self.key[0])

    @property
    def process(self) -> ProcRow:
        """The process itself."""
        return self.told[0]

    @property
    def cpu(self) -> float | None:
        """The part of a core that it has used since the picture before; None in the first one."""
        return self.told[1]

    @property
    def rows(self) -> Sequence[Row]:
        """Its actors, and what it does without one."""
        return self.told[2]

    @property
    def name(self) -> str:
        """Its rank, or that it is a program."""
        return "program" if self.process.mesh == PROGRAM_MESH else f"r{self.process.rank:02d}"


@dataclass(frozen=True, slots=True)
class _Roster:
    """What the processes of an allocation are called, which is found out once for pictures with the same *columns*."""

    columns: Columns
    keys: Sequence[Key]
    places: Sequence[int]
    in_order: Sequence[Key]
    hosts: Sequence[Key]


@dataclass(frozen=True, slots=True)
class Sighting:
    """All procs at one moment.

    Attributes:
        procs: by allocation, host, run, mesh and rank.
        warnings: deadlocks, and hosts that have not answered.
        cpu_s: CPU time of each so far, in seconds, by its key.
        rosters: the keys of the procs of each allocation, for the next picture.
    """

    procs: Sequence[ProcSeen] = ()
    warnings: Sequence[str] = ()
    t: float = 0.0
    cpu_s: Mapping[Key, float] = field(default_factory=dict)
    rosters: Mapping[str, _Roster] = field(default_factory=dict)


def see(seen: Mapping[str, CallsSeen], warnings: Iterable[str], before: Sighting, now_s: float) -> Sighting:
    """Return what is seen of some allocations, by their names.

    Args:
        warnings: what is to be told before deadlocks.
        before: the picture before.

    Raises:
        FrameError: a process has reported something else than its calls.
    """
    elapsed_s = now_s - before.t
    cpu_s: dict[Key, float] = {}
    rosters: dict[str, _Roster] = {}
    found: list[ProcSeen] = []
    rings: list[str] = []
    for name, calls in sorted(seen.items()):
        calls.check(LOOKED_AT)
        picture = Picture(calls)
        processes = picture.calls.processes
        known = before.rosters.get(name)
        if known is None or known.columns is not processes.lasting:
            known = _roster(name, processes.lasting)
        rosters[name] = known
        cpu_s.update(zip(known.keys, processes.column("cpu_s"), strict=True))
        look = partial(_look, picture, before.cpu_s, elapsed_s)
        found += map(ProcSeen, known.in_order, known.hosts, repeat(look), known.places)
        rings += [f"deadlock: {' -> '.join([*ring, ring[0]])}" for ring in picture.deadlocks]
    return Sighting(found, [*warnings, *rings], now_s, cpu_s, rosters)


def _roster(name: str, columns: Columns) -> _Roster:
    own = [columns.column(one) for one in ("host", "run", "mesh", "rank", "pid")]
    keys: list[Key] = list(zip([name] * len(columns), *own, strict=True))
    places = sorted(range(len(keys)), key=keys.__getitem__)
    in_order = [keys[place] for place in places]
    hosts = {host: (name, host) for host in own[0]}
    return _Roster(columns, keys, places, in_order, [hosts[own[0][place]] for place in places])


def _look(
    picture: Picture, before_s: Mapping[Key, float], elapsed_s: float, key: Key, place: int
) -> tuple[ProcRow, float | None, Sequence[Row]]:
    process = picture.calls.process(place)
    last_s = before_s.get(key) if elapsed_s > 0 else None
    cpu = None if last_s is None else max(process.cpu_s - last_s, 0.0) / elapsed_s
    return process, cpu, picture.rows_of(place)


def _busiest(rows: Sequence[Row]) -> Row | None:
    """The actor that a proc's line shows: one that has failed, or waits, or runs the longest."""
    return max(rows, key=lambda row: (row.state.startswith("failed"), row.waits_s, row.runs_s), default=None)
