"""Metrics over steps or time: a line for each of a few processes, a band and its outliers for many. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.history import MetricRow

__all__ = ["Chart", "Curve", "MetricStore"]

_MAX_LINES = 12
"""More lines than this hide each other."""

_NUM_OUTLIERS = 3

_MAX_BUCKETS = 150
"""Places along the axis, each of which keeps its lowest and highest value: a chart is some 300 pixels wide or more."""

_MAX_POINTS = 4000
_MAX_SERIES = 20_000
_MAX_CHARTS = 24
"""Limits on the memory of a program that watches for days, and on what one page shows."""

_Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """The values of one process, by step or time."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Chart:
    """One metric.

    Attributes:
        steps: whether the axis is the step; else it is Unix time.
        num_series: number of processes and sets of tags with values.
        lines: all of them, or those that differ the most from the others.
        band: lowest value, median and highest, by place on the axis; empty if all lines are there.
        odd: number of values that are infinite or not a number, which are not drawn.
    """

    name: str
    steps: bool
    num_series: int
    lines: Sequence[Curve]
    band: Sequence[tuple[float, float, float, float]]
    odd: int


class MetricStore:
    """The latest values of all metrics. Rows may be added twice: values are known by series and step or time."""

    def __init__(self) -> None:
        self._series: dict[str, dict[_Key, dict[float, float]]] = {}
        self._labels: dict[_Key, str] = {}
        self._odd: Counter[str] = Counter()
        self._num_series = 0
        self.dropped = 0

    def add(self, allocation: str, rows: Iterable[MetricRow]) -> None:
        """Add values of an allocation, in any order."""
        for row in rows:
            key = (row.step >= 0, allocation, row.run, row.mesh, row.rank, row.host, row.pid, row.actor, row.tags)
            some = self._series.setdefault(row.name, {})
            if key not in some:
                if self._num_series >= _MAX_SERIES:
                    self.dropped += 1
                    continue
                self._num_series += 1
            points = some.setdefault(key, {})
            x = float(row.step) if row.step >= 0 else round(row.t, 3)
            if not math.isfinite(row.value) and x not in points:
                self._odd[row.name] += 1
            points[x] = row.value
            if len(points) > _MAX_POINTS:
                for old in sorted(points)[: _MAX_POINTS // 4]:
                    del points[old]
            self._labels[key] = "program" if row.mesh < 0 else f"r{row.rank:02d}"
            if row.tags:
                self._labels[key] += f" {row.tags}"

    def charts(self) -> list[Chart]:
        """Return all metrics by name; one with and without steps is two."""
        found = []
        for name, some in sorted(self._series.items()):
            for steps in (True, False):
                series = {key: points for key, points in some.items() if key[0] is steps}
                if series:
                    found.append(self._chart(name, steps, series))
        return found[:_MAX_CHARTS]

    def _chart(self, name: str, steps: bool, series: Mapping[_Key, Mapping[float, float]]) -> Chart:
        finite = {key: sorted((x, y) for x, y in points.items() if math.isfinite(y)) for key, points in series.items()}
        band: list[tuple[float, float, float, float]] = []
        chosen = list(finite)
        if len(finite) > _MAX_LINES:
            band = _band(finite.values())
            middle = {x: mid for x, _, mid, _ in band}
            scores = {key: _distance(points, middle) for key, points in finite.items()}
            chosen = sorted(scores, key=lambda key: -scores[key])[:_NUM_OUTLIERS]
        lines = [Curve(self._labels[key], thin(finite[key])) for key in chosen]
        lines.sort(key=lambda line: line.label)
        return Chart(name, steps, len(finite), lines, band, self._odd[name])


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return fewer points, without losing a peak: the lowest and the highest of each bucket, in their order."""
    if len(points) <= 2 * _MAX_BUCKETS:
        return list(points)
    size = math.ceil(len(points) / _MAX_BUCKETS)
    found = []
    for start in range(0, len(points), size):
        some = points[start : start + size]
        ends = {min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])}
        found += sorted(ends)
    return found


def _band(series: Iterable[Sequence[tuple[float, float]]]) -> list[tuple[float, float, float, float]]:
    values: dict[float, list[float]] = {}
    for points in series:
        for x, y in points:
            values.setdefault(x, []).append(y)
    xs = sorted(values)
    size = max(math.ceil(len(xs) / _MAX_BUCKETS), 1)
    found = []
    for start in range(0, len(xs), size):
        some = [y for x in xs[start : start + size] for y in values[x]]
        found.append((xs[start], min(some), statistics.median(some), max(some)))
    return found


def _distance(points: Sequence[tuple[float, float]], middle: Mapping[float, float]) -> float:
    """The mean distance of a line from the median, where that is known."""
    gaps = [abs(y - middle[x]) for x, y in points if x in middle]
    return statistics.fmean(gaps) if gaps else 0.0
