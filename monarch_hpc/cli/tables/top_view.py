"""The picture of `monarch-hpc top`: hosts with their procs and actors, as lines of a screen. Pure."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import field
from itertools import groupby
from operator import attrgetter
from typing import Any

from monarch_hpc.cli.output import plain
from monarch_hpc.cli.tables.calls import format_age
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.text.units import format_size
from monarch_hpc.telemetry.views.picture import Row
from monarch_hpc.telemetry.views.sighting import Key, ProcSeen, Sighting

__all__ = ["COLUMNS", "Line", "TopScreen", "clip", "lines_of"]

COLUMNS = ("HOST, PROC, ACTOR", "STATE", "CPU", "MEMORY", "RUNS", "FOR", "WAITS FOR", "QUEUED")

_FIXED = {"STATE": 10, "CPU": 5, "MEMORY": 9, "FOR": 8, "QUEUED": 6}
_MIN_WIDTH, _MIN_HEIGHT = 40, 6


class Line:
    """One line below the headings. Most are never shown: what is in it is found out when it is.

    Args:
        key: the same in all pictures.
        make: gives its cells, and whether it is bad, for *what* it shows.
        proc: the proc that it is about.
    """

    __slots__ = ("_made", "_make", "_what", "key", "proc")

    def __init__(
        self, key: Key, make: Callable[[Any], tuple[tuple[str, ...], bool]], what: object, proc: ProcSeen | None
    ) -> None:
        self.key = key
        self.proc = proc
        self._make = make
        self._what = what
        self._made: tuple[tuple[str, ...], bool] | None = None

    @property
    def _content(self) -> tuple[tuple[str, ...], bool]:
        if self._made is None:
            self._made = self._make(self._what)
        return self._made

    @property
    def cells(self) -> tuple[str, ...]:
        """A cell for each of `COLUMNS`."""
        return self._content[0]

    @property
    def bad(self) -> bool:
        """Whether something is wrong there."""
        return self._content[1]


def lines_of(snapshot: Sighting, turned: Set[Key], wanted: str = "", *, everything: bool = False) -> list[Line]:
    """Return the lines of a tree.

    Args:
        turned: the lines that are not as they are at first: hosts open, procs closed.
        wanted: only procs that have this text somewhere, in any case; empty for all.
        everything: open all.
    """
    found: list[Line] = []
    chosen = (proc for proc in snapshot.procs if not wanted or wanted.lower() in _words(proc))
    for key, some in groupby(chosen, key=attrgetter("host")):
        procs = list(some)
        found.append(Line(key, _host_line, procs, None))
        if everything or turned:
            for proc in procs if everything or key not in turned else ():
                found.append(Line(proc.key, _proc_line, proc, proc))
                if proc.key in turned or everything:
                    found += [Line((*proc.key, row.actor), _actor_line, row, proc) for row in proc.rows if row.actor]
        else:
            found += [Line(proc.key, _proc_line, proc, proc) for proc in procs]
    return found


def _words(proc: ProcSeen) -> str:
    one = proc.process
    words = [one.host, proc.name, one.run, one.state, one.cause, str(one.pid)]
    for row in proc.rows:
        words += [row.actor, row.endpoint, row.state, row.waits_for]
    return "\n".join(words).lower()


def _host_line(procs: Sequence[ProcSeen]) -> tuple[tuple[str, ...], bool]:
    states = Counter(map(_state, procs))
    counted = ", ".join(f"{num} {state}" for state, num in states.most_common())
    cpus = [proc.cpu for proc in procs if proc.cpu is not None]
    memory = _size(sum(proc.process.rss_bytes for proc in procs))
    cpu = _cpu(sum(cpus) if cpus else None)
    cells = (str(procs[0].host[1]), _counted(len(procs), "proc"), cpu, memory, counted, "", "", "")
    return cells, "dead" in states or "stopped" in states


def _proc_line(proc: ProcSeen) -> tuple[tuple[str, ...], bool]:
    one, cpu, _, row = proc.told
    name = f"  {proc.name} {one.pid}" if one.pid else f"  {proc.name}"
    state = _state(proc)
    calls = ("", "", one.cause, "") if row is None or one.state == "ended" else _calls(row)
    bad = one.state in ("ended", "stopped") or state == "failed"
    return (name, state, _cpu(cpu), _size(one.rss_bytes), *calls), bad


def _actor_line(row: Row) -> tuple[tuple[str, ...], bool]:
    state = row.state.partition(":")[0]
    return (f"    {row.actor}", state, "", "", *_calls(row)), state == "failed"


def _state(proc: ProcSeen) -> str:
    process, _, _, row = proc.told
    state = process.state
    if state != "ready" or row is None:
        return "dead" if state == "ended" else state
    return row.state.partition(":")[0]


def _calls(row: Row) -> tuple[str, str, str, str]:
    more = f" +{row.num_running - 1}" if row.num_running > 1 else ""
    name = f"{row.actor}.{row.endpoint}{more}" if row.endpoint else ""
    age_s = row.waits_s or row.runs_s
    return name, format_age(age_s) if age_s else "", row.waits_for, str(row.num_queued or "")


def _counted(num: int, word: str) -> str:
    return f"{num} {word}" if num == 1 else f"{num} {word}s"


def _cpu(cpu: float | None) -> str:
    return "" if cpu is None else f"{cpu:.0%}"


def _size(num_bytes: int) -> str:
    return format_size(num_bytes) if num_bytes else ""


def clip(text: str, width: int) -> str:
    """Return *text* without control codes, cut or filled to *width* columns of a terminal."""
    if not text.isprintable():
        text = plain(text)
    if text.isascii():
        return text[:width].ljust(width)
    used, kept = 0, []
    for char in text:
        columns = 0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        if used + columns > width:
            break
        used += columns
        kept.append(char)
    return "".join(kept) + " " * (width - used)


@dataclass(slots=True)
class TopScreen:
    """The state of the screen: what is selected, opened and filtered.

    Attributes:
        typing: whether keys go to the filter.
        page: lines of text that cover the tree: a stack, or output; None while there are none.
        status: a word about what is under way.
    """

    wanted: str = ""
    typing: bool = False
    selected: Key = ()
    turned: set[Key] = field(default_factory=set)
    page: list[str] | None = None
    status: str = ""
    _first: int = 0
    _height: int = 10

    def press(self, key: str, snapshot: Sighting) -> tuple[str, ProcSeen | None]:
        """Take a key; return what the caller is to do: ``quit``, or ``stack`` or ``logs`` of a proc; or nothing."""
        if self.typing:
            self._type(key)
            return "", None
        if self.page is not None:
            return self._turn_page(key), None
        lines = lines_of(snapshot, self.turned, self.wanted)
        at = self._place(lines)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._height, "pagedown": self._height}
        steps |= {"home": -len(lines), "end": len(lines)}
        if key in steps and lines:
            self.selected = lines[min(max(at + steps[key], 0), len(lines) - 1)].key
        elif key in ("enter", " ") and lines:
            self.turned ^= {lines[at].key}
        elif key == "/":
            self.typing = True
        elif key == "escape":
            self.wanted = ""
        elif key == "q":
            return "quit", None
        elif key in ("s", "l") and lines and (proc := lines[at].proc) is not None:
            return ("stack" if key == "s" else "logs"), proc
        return "", None

    def show(self, page: Iterable[str]) -> None:
        """Cover the tree with lines of text, until a key."""
        self.page, self._first, self.status = list(page), 0, ""

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self.wanted = "" if key == "escape" else self.wanted
        elif key == "backspace":
            self.wanted = self.wanted[:-1]
        elif len(key) == 1:
            self.wanted += key

    def _turn_page(self, key: str) -> str:
        assert self.page is not None
        last = max(len(self.page) - self._height, 0)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._height, "pagedown": self._height, "end": last}
        if key in ("q", "escape", "enter"):
            self.page, self._first = None, 0
        elif key == "home":
            self._first = 0
        elif key in steps:
            self._first = min(max(self._first + steps[key], 0), last)
        return ""

    def _place(self, lines: Sequence[Line]) -> int:
        return next((place for place, line in enumerate(lines) if line.key == self.selected), 0)

    def render(self, snapshot: Sighting, width: int, height: int) -> list[tuple[str, str]]:
        """Return the lines of the screen with their style: ``head``, ``bad``, ``selected``, or empty."""
        if width < _MIN_WIDTH or height < _MIN_HEIGHT:
            return [(clip(f"needs {_MIN_WIDTH}x{_MIN_HEIGHT} characters", width), "")][:height]
        hosts = len(set(map(attrgetter("host"), snapshot.procs)))
        title = f"monarch-hpc top   {_counted(hosts, 'host')}, {_counted(len(snapshot.procs), 'proc')}"
        found = [(title if snapshot.t else "monarch-hpc top   asking the hosts", "")]
        found += [(warning, "bad") for warning in snapshot.warnings[: height // 4]]
        if self.page is not None:
            self._height = height - len(found) - 1
            found += [(line, "") for line in self.page[self._first : self._first + self._height]]
            keys = "q back   up/down"
        else:
            self._height = height - len(found) - 2
            widths = _widths(width)
            found.append((_join(COLUMNS, widths), "head"))
            found += self._tree(lines_of(snapshot, self.turned, self.wanted), widths)
            keys = "q quit   enter open/close   s stack   l logs   / filter"
        found = found[: height - 1] + [("", "")] * (height - 1 - len(found))
        if self.typing or self.wanted:
            keys = f"/{self.wanted}" + ("_" if self.typing else f"   esc all   {keys}")
        found.append((f"{self.status}   {keys}" if self.status else keys, "head"))
        return [(clip(text, width), style) for text, style in found]

    def _tree(self, lines: Sequence[Line], widths: Sequence[int]) -> list[tuple[str, str]]:
        at = self._place(lines)
        if lines:
            self.selected = lines[at].key
        self._first = min(max(self._first, at - self._height + 1, 0), at)
        some = lines[self._first : self._first + self._height]
        return [
            (_join(line.cells, widths), "selected" if line.key == self.selected else "bad" if line.bad else "")
            for line in some
        ]


def _widths(width: int) -> list[int]:
    """Columns of fixed width, and three that share the rest; on a narrow screen, those at the end are left out."""
    names = list(COLUMNS)
    while len(names) > 2 and sum(_FIXED.get(name, 14) + 1 for name in names) > width:
        names.pop()
    left = width - sum(_FIXED.get(name, 0) + 1 for name in names)
    free = [name for name in names if name not in _FIXED]
    return [_FIXED.get(name, left // len(free)) for name in names]


def _join(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(clip(cell, width) for cell, width in zip(cells, widths, strict=False))
