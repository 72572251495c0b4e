"""Folds equal lines of the ranks of a mesh: a line that a thousand ranks print becomes two lines in the program.

The first of several equal lines is shown at once. Equal lines of any rank that follow within the window are counted,
and shown as one line when the window ends. Pure: time is an argument.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass

__all__ = ["Fold", "OutputLine", "Shown", "render_ranks"]

_MAX_GROUPS = 4096
"""Limit of different lines held back in one window; beyond it, the oldest are shown early. About two megabytes."""

_MAX_RANGES = 4
"""Limit of rank ranges in the prefix of a line, which leaves room for the line on a terminal."""

_Key = tuple[str, str, str]
"""Stream, text and actor, which must be equal for lines to be folded."""


@dataclass(frozen=True, slots=True)
class OutputLine:
    """A line that one rank printed, or one log record with all its lines.

    Attributes:
        stream: ``out`` or ``err``.
        actor: actor named in the prefix; empty for none.
    """

    rank: int
    host: str
    stream: str
    text: str
    actor: str = ""


@dataclass(slots=True)
class Shown:
    """A line to be shown, for one or more ranks.

    Attributes:
        ranks: number of occurrences by rank.
        hosts: names of the ranks' hosts.
        more: whether these are repetitions of a line that was shown at its first occurrence.
    """

    stream: str
    text: str
    actor: str
    ranks: dict[int, int] = field(default_factory=dict)
    hosts: set[str] = field(default_factory=set)
    more: bool = False

    def add(self, line: OutputLine) -> None:
        """Count one more occurrence."""
        self.ranks[line.rank] = self.ranks.get(line.rank, 0) + 1
        self.hosts.add(line.host)

    def render(self, name: str) -> str:
        """Return the lines as the program prints them, each with a prefix of mesh, ranks, host and actor.

        Args:
            name: name of the mesh; empty for none.
        """
        host = next(iter(self.hosts)) if len(self.hosts) == 1 else ""
        prefix = " ".join(filter(None, (name, render_ranks(self.ranks), host, self.actor)))
        total = sum(self.ranks.values())
        times = f" (×{total} more)" if self.more else f" (×{total})" if total > 1 else ""
        first, *others = self.text.split("\n")
        return "".join(f"[{prefix}] {line}\n" for line in (first + times, *others))


@dataclass(slots=True, eq=False)
class _Group:
    """Equal lines of one window.

    Attributes:
        place: position in the order in which groups are shown.
        due_s: time at which the window ends.
        num_followed: number of its ranks with a later line that is held back too.
    """

    key: _Key
    place: int
    due_s: float
    shown: Shown
    num_followed: int = 0


class Fold:
    """The lines of one mesh that are waiting to be shown.

    No line is lost, and the lines of a rank to one stream stay in order: while a line of a rank is held back, its later
    lines are held back as well. No line is held back for more than two windows. Lines that differ in a number are
    different lines.

    Attributes:
        window_s: seconds within which equal lines are folded; 0 shows each line.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._groups: OrderedDict[int, _Group] = OrderedDict()  # by place, the first to be shown first
        self._by_key: dict[_Key, list[_Group]] = {}  # in the same order
        # (rank, stream) -> the last group with a line of it. The order between a rank's two streams is unknown anyway.
        self._held: dict[tuple[int, str], _Group] = {}
        self._place = 0

    @property
    def due_s(self) -> float | None:
        """Time of the next `advance` that returns lines; None if nothing is held back."""
        return next(iter(self._groups.values())).due_s if self._groups else None

    def add(self, line: OutputLine, now_s: float) -> list[Shown]:
        """Take a line of a rank; return the lines to show now, in order."""
        ready = self.advance(now_s)
        shown = Shown(line.stream, line.text, line.actor)
        if self.window_s <= 0:
            shown.add(line)
            return [*ready, shown]
        key = line.stream, line.text, line.actor
        held = self._held.get((line.rank, line.stream))
        group = held if held is not None and held.key == key else self._find(key, held, now_s)
        if group is None:
            group = self._begin(key, now_s, shown)
            if held is None:
                shown.add(line)
                ready.append(shown)
                group.shown = Shown(line.stream, line.text, line.actor, more=True)
                return ready + self._bound()
        if held is not None and held is not group:
            held.num_followed += 1
        group.shown.add(line)
        self._held[line.rank, line.stream] = group
        return ready + self._bound()

    def advance(self, now_s: float) -> list[Shown]:
        """Return the lines whose windows have ended."""
        ready: list[Shown] = []
        while self._groups and next(iter(self._groups.values())).due_s <= now_s:
            ready += self._end()
        return ready

    def flush(self) -> list[Shown]:
        """Return all lines that are held back."""
        return self.advance(float("inf"))

    def _find(self, key: _Key, held: _Group | None, now_s: float) -> _Group | None:
        """Return the first group of *key* that is shown after *held*."""
        groups = self._by_key.get(key)
        if not groups:
            return None
        if held is None:
            return groups[0]
        at = bisect.bisect_right(groups, held.place, key=lambda group: group.place)
        if at < len(groups):
            return groups[at]
        # The last group may move to the end of the order, unless one of its ranks has a later line that is held back.
        last = groups[-1]
        if last.num_followed or now_s >= last.due_s:
            return None
        del self._groups[last.place]
        self._place += 1
        last.place = self._place
        self._groups[last.place] = last
        return last

    def _begin(self, key: _Key, now_s: float, shown: Shown) -> _Group:
        self._place += 1
        group = self._groups[self._place] = _Group(key, self._place, now_s + self.window_s, shown)
        self._by_key.setdefault(key, []).append(group)
        return group

    def _end(self) -> list[Shown]:
        _, group = self._groups.popitem(last=False)
        alike = self._by_key[group.key]
        del alike[0]
        if not alike:
            del self._by_key[group.key]
        for rank in group.shown.ranks:
            if self._held.get((rank, group.shown.stream)) is group:
                del self._held[rank, group.shown.stream]
        return [group.shown] if group.shown.ranks else []

    def _bound(self) -> list[Shown]:
        return self._end() if len(self._groups) > _MAX_GROUPS else []


def render_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as text, ``r03``, ``r00-r15`` or ``r00,r02,r04-r07``; of many ranges only the first are named."""
    ranges: list[list[int]] = []
    for rank in sorted(ranks):
        if ranges and ranges[-1][-1] == rank - 1:
            ranges[-1][1:] = [rank]
        else:
            ranges.append([rank])
    named = ranges if len(ranges) <= _MAX_RANGES else ranges[: _MAX_RANGES - 1]
    text = ",".join("-".join(f"r{rank:02d}" for rank in part) for part in named)
    left = sum(part[-1] - part[0] + 1 for part in ranges[len(named) :])
    return f"{text},+{left}" if left else text
