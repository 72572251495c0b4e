"""Documents of the dashboard for its page: JSON without control characters. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from monarch_hpc.cli.output import plain
from monarch_hpc.telemetry.views.series import Chart
from monarch_hpc.telemetry.views.sighting import ProcSeen, Sighting
from monarch_hpc.wire.tables.calls import PROGRAM_MESH
from monarch_hpc.wire.tables.history import HandledCall

__all__ = ["chart_document", "encode", "failure_document", "picture_document"]

_MAX_ROWS = 500
"""Limit on the actors and failures in a page: more cannot be read, and SQL can ask for them."""


def encode(document: object) -> bytes:
    """Return *document* as JSON of one line. Texts have no control characters, numbers that JSON lacks are null."""
    return json.dumps(_clean(document), separators=(",", ":"), allow_nan=False).encode()


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value if value.isprintable() else plain(value, lines=True)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {plain(str(key)): _clean(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(one) for one in value]
    return value


def picture_document(seen: Sighting, t: float) -> dict[str, object]:
    """Return the ranks and what their actors do.

    Args:
        t: Unix time of the picture.
    """
    busy = [
        {"allocation": proc.allocation, "host": proc.process.host, **asdict(row)}
        for proc in seen.procs
        for row in proc.rows
        if row.actor and (row.endpoint or row.waits_for or row.num_queued or row.state.startswith("failed"))
    ]
    busy.sort(key=_urgency)
    return {
        "t": t,
        "warnings": list(seen.warnings),
        "procs": [_proc(proc) for proc in _in_order(seen.procs)],
        "actors": busy[:_MAX_ROWS],
        "more_actors": max(len(busy) - _MAX_ROWS, 0),
    }


def _urgency(row: Mapping[str, object]) -> tuple[object, ...]:
    """Failed actors first, then those that wait, then those that run, the longest first."""
    waits_s, runs_s, state = row["waits_s"], row["runs_s"], str(row["state"])
    assert isinstance(waits_s, float | int)
    assert isinstance(runs_s, float | int)
    return not state.startswith("failed"), -waits_s, -runs_s


def _in_order(procs: Iterable[ProcSeen]) -> list[ProcSeen]:
    """By rank; a proc that has ended is left out where another one has taken its place."""
    found: dict[tuple[object, ...], ProcSeen] = {}
    for proc in procs:
        one = proc.process
        place: tuple[object, ...] = (proc.allocation, one.run, one.mesh, one.rank)
        if one.mesh == PROGRAM_MESH:
            place = (*place, one.host, one.pid)
        if place not in found or found[place].process.state == "ended":
            found[place] = proc
    return [found[place] for place in sorted(found, key=lambda place: tuple(map(_sortable, place)))]


def _sortable(value: object) -> tuple[int, object]:
    return (0, value) if isinstance(value, int) else (1, str(value))


def _proc(proc: ProcSeen) -> list[object]:
    one = proc.process
    cpu = None if proc.cpu is None else round(proc.cpu, 2)
    place = [proc.allocation, one.run, one.mesh, one.rank, one.host, one.pid]
    return [*place, _sign(proc), one.cause, cpu, one.rss_bytes]


def _sign(proc: ProcSeen) -> str:
    """What the cell of a proc shows: its state; for one that is ready, that of its actors."""
    if proc.process.state != "ready":
        return proc.process.state
    states = {row.state.partition(":")[0] for row in proc.rows}
    return next((one for one in ("failed", "waiting", "running", "constructing") if one in states), "idle")


def chart_document(charts: Iterable[Chart]) -> list[dict[str, object]]:
    """Return metrics as curves."""
    return [
        {
            "name": one.name,
            "steps": one.steps,
            "num_series": one.num_series,
            "odd": one.odd,
            "lines": [[line.label, [_rounded(point) for point in line.points]] for line in one.lines],
            "band": [_rounded(place) for place in one.band],
        }
        for one in charts
    ]


def _rounded(numbers: Sequence[float]) -> list[float]:
    """The numbers as a screen can show them; the first one, the place on the axis, as it is."""
    return [numbers[0], *(float(f"{number:.5g}") for number in numbers[1:])]


def failure_document(failed: Iterable[HandledCall], seen: Sighting) -> list[dict[str, object]]:
    """Return calls that raised and processes that died, the latest first."""
    found: list[dict[str, object]] = [
        {
            "t": row.t,
            "who": f"{row.actor}[{row.actor_rank}].{row.endpoint}",
            "where": f"r{row.rank:02d} {row.host}",
            "what": row.error,
            "line": row.line,
        }
        for row in failed
    ]
    found.sort(key=lambda one: (-float(str(one["t"])), str(one["who"])))
    died: list[dict[str, object]] = [
        {
            "t": None,
            "who": f"proc {proc.process.pid}",
            "where": f"r{proc.process.rank:02d} {proc.process.host}",
            "what": proc.process.cause or "ended",
            "line": "",
        }
        for proc in seen.procs
        if proc.process.state == "ended"
    ]
    return [*died, *found][:_MAX_ROWS]
