"""The table of calls, which `monarch-hpc status --calls` shows."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, overload

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import FrameError
from monarch_hpc.wire.tables.columns import Block, Columns, Entries, Kinds, divide, render_blocks, starts_of
from monarch_hpc.wire.tables.procs import ProcRow, RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "CALLS",
    "PROGRAM_MESH",
    "ActorSeen",
    "CallsSeen",
    "EndpointCount",
    "ProcCalls",
    "RunningCall",
    "Scene",
    "SentCall",
    "Wait",
]

PROGRAM_MESH = -1
"""Stands for a mesh's number where the process is a program."""


@dataclass(frozen=True, slots=True)
class ActorSeen:
    """One actor of a proc.

    Args:
        actor: its number, hexadecimal: JSON has no u64.
        name: name of its mesh.
        rank: its rank in that mesh.
        state: ``spawned`` while its constructor runs, ``ready``, ``stopped`` or ``failed``.
        cause: why it is no longer ready.
        age_s: how long it has been in that state.
    """

    actor: str
    name: str
    rank: int
    state: str
    cause: str
    age_s: float


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call that an actor is handling.

    Args:
        actor: the actor's number.
        call: the caller's number of the call, see `telemetry.layout`; 0 if the caller wants no answer.
        caller: incarnation of the calling process, hexadecimal.
        caller_host: host of the calling process.
        queued_s: how long the call waited in the process that handles it.
        operation: what it does, if it says so: an operation on mesh tensors, and the line that issued it.
    """

    actor: str
    endpoint: str
    call: int
    caller: str
    caller_host: str
    age_s: float
    queued_s: float
    operation: str = ""


@dataclass(frozen=True, slots=True)
class SentCall:
    """A call without an answer yet.

    Args:
        call: its number.
        actor: number of the calling actor; 0 for a program.
        num_receivers: number of actors that were sent it; several for a cast.
        target: incarnation of the called process, empty for a cast; *target_host* is its host.
        target_actor: number of the called actor; *target_name* is the name of its mesh.
    """

    call: int
    actor: str
    num_receivers: int
    target: str
    target_host: str
    target_actor: str
    target_name: str
    endpoint: str
    age_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A waiting thread or task.

    Args:
        actor: number of the actor that waits; 0 for a program.
        calls: numbers of the calls whose answers it waits for, some of *num_calls*.
        what: what it waits for, if that is not a call.
        age_s: how long ago the first of the calls was made; 0 without calls.
    """

    actor: str
    calls: list[int]
    num_calls: int
    what: str
    age_s: float


@dataclass(frozen=True, slots=True)
class EndpointCount:
    """Statistics of one endpoint, since the process started.

    Args:
        name: name of the actors' mesh.
        total_s: total time of all calls; *longest_s* the longest of them.
        ran: histogram of the times, see `telemetry.histogram`; without trailing zeros.
        queued_total_s: the same for the time that calls waited in the process before they ran, as the other two.
    """

    name: str
    endpoint: str
    num_calls: int
    num_failed: int
    total_s: float
    longest_s: float
    ran: list[int]
    queued_total_s: float
    queued_longest_s: float
    queued: list[int]


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of a process at one moment, read from its records.

    Args:
        problem: why its records cannot be read; empty if they can.
        incarnation: hexadecimal; empty if it has not recorded anything.
        sent: the calls that a thread or task waits for, and the oldest of *num_sent*.
    """

    problem: str
    incarnation: str
    actors: list[ActorSeen]
    running: list[RunningCall]
    waits: list[Wait]
    sent: list[SentCall]
    num_sent: int
    endpoints: list[EndpointCount]


@dataclass(frozen=True, slots=True)
class ProcCalls(RunProcess):
    """The calls of one process, and what it uses of its host."""

    scene: Annotated[Scene, "its actors, and the calls that they run, have sent and wait for"]
    rss_bytes: Annotated[int, "its resident memory, in bytes; 0 if it has ended"] = 0
    cpu_s: Annotated[float, "CPU time of all its threads so far, in seconds; 0 if it has ended"] = 0.0


@dataclass(frozen=True, slots=True)
class _Process(RunProcess):
    """A process without the lists of its scene, whose entries follow those of the processes before.

    Args:
        num_reported: those of its *num_sent* calls that are entries.
    """

    rss_bytes: int
    cpu_s: float
    problem: str
    incarnation: str
    num_sent: int
    num_actors: int
    num_running: int
    num_waits: int
    num_reported: int
    num_endpoints: int


_LISTS: Mapping[str, tuple[str, type]] = {
    "actors": ("num_actors", ActorSeen),
    "running": ("num_running", RunningCall),
    "waits": ("num_waits", Wait),
    "sent": ("num_reported", SentCall),
    "endpoints": ("num_endpoints", EndpointCount),
}
"""The lists of a scene, each with the column of its length, and the class of its entries. Questions may be about some
of them: the others are empty then."""


_CHANGING = frozenset({"call", "calls", "num_calls", "num_failed", "total_s", "longest_s", "ran", "queued"}) | {
    *("age_s", "queued_s", "queued_total_s", "queued_longest_s", "rss_bytes", "cpu_s", "num_sent"),
    *("num_running", "num_waits", "num_reported"),
}
"""Names of the fields that are often different in the next answer."""


def _render(rows: Sequence[ProcCalls], parts: Collection[str] = _LISTS) -> list[Block]:
    processes = []
    for row in rows:
        scene = row.scene
        lengths = [len(getattr(scene, name)) if name in parts else 0 for name in _LISTS]
        first = *row.first_columns, row.rss_bytes, row.cpu_s
        processes.append(_Process(*first, scene.problem, scene.incarnation, scene.num_sent, *lengths))
    blocks = [*render_blocks(_Process, processes, _CHANGING)]
    for name, (_, cls) in _LISTS.items():
        own = [entry for row in rows for entry in getattr(row.scene, name)] if name in parts else []
        blocks += render_blocks(cls, own, _CHANGING)
    return blocks


@functools.cache
def _kinds() -> list[tuple[str, Kinds]]:
    """What the blocks of a portion are about, and their columns."""
    classes = [("processes", _Process), *((name, cls) for name, (_, cls) in _LISTS.items())]
    return [(name, kinds) for name, cls in classes for kinds in divide(cls, _CHANGING)]


class CallsSeen(Sequence[ProcCalls]):
    """The calls of many processes, as columns: an object is made of a process or call when it is looked at.

    Args:
        portions: blocks of processes and of each of their lists, see `parse`.

    Raises:
        FrameError: they are something else; likewise when a value is looked at that is of another type.
    """

    def __init__(self, portions: Sequence[Sequence[object]]) -> None:
        blocks = list(zip(*portions, strict=True)) or [()] * len(_kinds())
        self._take([Columns(kinds, some, name) for (name, kinds), some in zip(_kinds(), blocks, strict=True)], [])

    def _take(self, columns: Sequence[Columns], lines: Sequence[tuple[str, ...]]) -> None:
        self._columns = columns
        self._lines = lines
        self._starts: dict[str, list[int]] = {}
        self._process_columns: list[list[Any]] = []
        self.processes: Entries[_Process] = Entries(_Process, *columns[:2])
        self._entries: dict[str, Entries[Any]] = {}
        for place, (name, (length, cls)) in enumerate(_LISTS.items(), 1):
            entries = self._entries[name] = Entries(cls, *columns[2 * place : 2 * place + 2])
            _check_lengths(self.processes.column(length), columns[0].sizes, entries.lasting.sizes, name)

    @classmethod
    def of(cls, rows: Sequence[ProcCalls]) -> CallsSeen:
        """The calls of processes that are objects already."""
        return rows if isinstance(rows, CallsSeen) else cls([_render(rows)])

    @classmethod
    def parse(cls, texts: Iterable[str], before: CallsSeen | None = None) -> CallsSeen:
        """The calls of the processes that `CALLS` has rendered, in one text or in several.

        Args:
            before: the answer before, with which it shares what is the same.
        """
        portions = [text.split("\n") for text in texts]
        for portion in portions:
            if len(portion) != len(_kinds()):
                raise FrameError(f"rows of calls are not {len(_kinds())} lines: {portion!s:.80}")
        by_block: list[tuple[str, ...]] = list(zip(*portions, strict=True)) or [()] * len(_kinds())
        columns = []
        for place, ((name, kinds), lines) in enumerate(zip(_kinds(), by_block, strict=True)):
            if before is not None and before._lines and before._lines[place] == lines:
                columns.append(before._columns[place])
            else:
                columns.append(Columns(kinds, _load(lines), name))
        made = cls.__new__(cls)
        made._take(columns, by_block)
        return made

    def __len__(self) -> int:
        return len(self.processes)

    @overload
    def __getitem__(self, place: int) -> ProcCalls: ...

    @overload
    def __getitem__(self, place: slice) -> list[ProcCalls]: ...

    def __getitem__(self, place: int | slice) -> ProcCalls | list[ProcCalls]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        (one,) = self.processes.make(place, place + 1)
        lists = {name: self.list_of(name, place) for name in _LISTS}
        scene = Scene(one.problem, one.incarnation, num_sent=one.num_sent, **lists)
        return ProcCalls(*one.first_columns, scene, one.rss_bytes, one.cpu_s)

    def __iter__(self) -> Iterator[ProcCalls]:
        return (self[place] for place in range(len(self)))

    def process(self, place: int) -> ProcRow:
        """One of the processes, without its calls."""
        if not self._process_columns:
            self._process_columns = [self.processes.column(field.name) for field in fields(ProcRow)]
        return ProcRow(*[column[place] for column in self._process_columns])

    def check(self, names: Iterable[str]) -> None:
        """Look at all values of processes and of some of their lists, so that none is found to be wrong later."""
        self.processes.check()
        for name in names:
            self._entries[name].check()

    def entries(self, name: str) -> Entries[Any]:
        """The entries of a list of the scenes of all processes."""
        return self._entries[name]

    def lengths(self, name: str) -> list[int]:
        """The length of that list, of each process."""
        return self.processes.column(_LISTS[name][0])

    def places(self, name: str, place: int) -> range:
        """The places of the entries of that list of one process, among all."""
        if name not in self._starts:
            self._starts[name] = starts_of(self.lengths(name))
        starts = self._starts[name]
        return range(starts[place], starts[place + 1])

    def list_of(self, name: str, place: int) -> list[Any]:
        """That list of one process."""
        places = self.places(name, place)
        return self._entries[name].make(places.start, places.stop)


_encode = json.JSONEncoder(separators=(",", ":")).encode


def _load(lines: Sequence[str]) -> list[object]:
    """The values of some lines of JSON. All at once: to read one costs as much as a hundred numbers in it."""
    try:
        found: list[object] = json.loads(f"[{','.join(lines)}]")
    except (ValueError, RecursionError) as error:
        raise FrameError(f"rows of calls are not JSON: {error}") from error
    if len(found) != len(lines):
        raise FrameError(f"rows of calls are not {len(lines)} blocks, but {len(found)}")
    return found


def _check_lengths(lengths: Sequence[int], processes: Sequence[int], entries: Sequence[int], name: str) -> None:
    """Check that the processes of each answer have as many entries as there are.

    Args:
        lengths: how many each process has.
        processes: the number of processes of each answer.
        entries: the number of entries of each answer.
    """
    ends = list(map(starts_of(lengths).__getitem__, starts_of(processes)))
    if min(lengths, default=0) < 0 or list(map(operator.sub, ends[1:], ends)) != entries:
        raise FrameError(f"answers have {entries!s:.80} {name}, and their processes {lengths!s:.80}")


class _CallsTable(Table[ProcCalls]):
    """The table of calls, whose rows travel as columns."""

    def fit(
        self,
        rows: Iterable[ProcCalls],
        where: Mapping[str, object],
        max_bytes: int | None,
        parts: Collection[str] = (),
    ) -> tuple[str, bool]:
        chosen = [row for row in rows if self.chooses(row, where)]
        return "\n".join(map(_encode, _render(chosen, parts or _LISTS))), False

    def read(self, text: str) -> list[ProcCalls]:
        return list(CallsSeen.parse([text]))


CALLS = _CallsTable("calls", ProcCalls, "What processes of runs do: their actors, calls and waits.")
"""The table of the processes of all runs."""
