"""`monarch-hpc status --calls`: who runs what for whom, and who waits for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from monarch_hpc.cli.output import Output, Table
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.telemetry.picture import Picture, Row, draw

__all__ = ["show_calls"]

_WAIT_S = 2.0
"""Longer than a host that lives takes to answer, short enough for a person to wait for one that does not."""


@dataclass(frozen=True, slots=True)
class _Answer:
    name: str
    picture: Picture
    missing: list[str]


def show_calls(name: str | None, config: Config, output: Output) -> int:
    """Show the allocation called *name*, or that in the directory *name*, or all that live."""
    from monarch_hpc.agent.attach import query_calls

    targets = _targets(name, config)
    answers = []
    for target, directory in targets:
        report = query_calls(directory, _WAIT_S)
        if report is None:
            output.warn(f"{target}: its head does not answer")
            continue
        answers.append(_Answer(target, draw(report.procs), report.missing))
    for answer in answers:
        for missing in answer.missing:
            output.warn(f"{answer.name}: no answer from {missing} within {_WAIT_S:g} s: what it does is not shown")
        for problem in answer.picture.problems:
            output.warn(f"{answer.name}: {problem}")
    rows = [(answer, row) for answer in answers for row in answer.picture.rows]
    text: str | Table = "no actor, and no program: nothing runs"
    if rows:
        several = len({(answer.name, row.run) for answer, row in rows}) > 1
        first = ["RUN"] if several else []
        columns = [*first, "ACTOR", "PROC", "STATE", "RUNS", "SINCE", "FOR", "WAITS FOR", "SINCE", "QUEUED"]
        text = Table(columns, [[*([row.run] if several else []), *_cells(row)] for _, row in rows])
    elif not targets:
        text = "there is no allocation; take one: monarch-hpc alloc NAME -N HOSTS -t MINUTES"
    document = {"allocations": [_document(answer) for answer in answers]}
    output.show(document, text, [row.actor for _, row in rows if row.actor])
    for answer in answers:
        for ring in answer.picture.deadlocks:
            output.warn(f"deadlock: {' -> '.join([*ring, ring[0]])}")
    return 0


def _targets(name: str | None, config: Config) -> Sequence[tuple[str, Path]]:
    """Return names and directories."""
    from monarch_hpc.agent.local import find_local
    from monarch_hpc.slurm import Allocations

    local = find_local()
    if name is not None:
        if "/" in name:
            return [(name, Path(name).absolute())]
        if name in local:
            return [(name, local[name])]
        record = Allocations.open(config).find(name)
        if record.ended is not None:
            raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
        return [(record.name, record.directory)]
    records = [record for record in Allocations.open(config).registry.records() if record.live]
    return [*((record.name, record.directory) for record in records), *local.items()]


def _cells(row: Row) -> list[str]:
    runs = row.endpoint + (f" and {row.num_running - 1} more" if row.num_running > 1 else "")
    return [
        row.actor or "-",
        row.proc,
        row.state,
        runs or "-",
        _age(row.runs_s) if row.endpoint else "-",
        row.caller or "-",
        row.waits_for or "-",
        _age(row.waits_s) if row.waits_s else "-",
        str(row.num_queued or "-"),
    ]


def _age(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{left:02d}"


def _document(answer: _Answer) -> dict[str, object]:
    return {
        "name": answer.name,
        "missing": answer.missing,
        "problems": answer.picture.problems,
        "deadlocks": answer.picture.deadlocks,
        "rows": [asdict(row) for row in answer.picture.rows],
    }
