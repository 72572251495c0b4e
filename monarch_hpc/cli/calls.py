"""`monarch-hpc status --calls`: running calls, their callers, and which actors wait for which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from monarch_hpc.cli.output import Console, Table
from monarch_hpc.config import Config
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.telemetry.picture import Picture, Row, draw

__all__ = ["NO_ALLOCATION", "Answer", "ask", "document_of", "find_targets", "format_age", "show_calls"]

_WAIT_S = 2.0
"""Longer than a live host takes to answer, and still short enough to wait for one that does not."""

NO_ALLOCATION = "there is no allocation; take one: monarch-hpc alloc NAME -N HOSTS -t MINUTES"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one allocation.

    Attributes:
        missing: descriptions of the processes that did not answer in time.
    """

    name: str
    picture: Picture
    missing: list[str]


def show_calls(name: str | None, config: Config, output: Console) -> int:
    """Show the calls of the allocation named *name*, or in the directory *name*; of all live ones if None."""
    targets = find_targets(name, config)
    answers = ask(targets, output)
    rows = [(answer, row) for answer in answers for row in answer.picture.rows]
    text: str | Table = "no actor and no program is running"
    if rows:
        several = len({(answer.name, row.run) for answer, row in rows}) > 1
        first = ["RUN"] if several else []
        columns = [*first, "ACTOR", "PROC", "STATE", "RUNS", "SINCE", "FOR", "WAITS FOR", "SINCE", "QUEUED"]
        text = Table(columns, [[*([row.run] if several else []), *_cells(row)] for _, row in rows])
    elif not targets:
        text = NO_ALLOCATION
    document = {"allocations": [_document(answer) for answer in answers]}
    output.show(document, text, [row.actor for _, row in rows if row.actor])
    for answer in answers:
        for ring in answer.picture.deadlocks:
            output.warn(f"deadlock: {' -> '.join([*ring, ring[0]])}")
    return 0


def ask(targets: Sequence[tuple[str, Path]], output: Console) -> list[Answer]:
    """Return the answers of allocations, and warn about missing ones."""
    from monarch_hpc.attach.attach import query_calls

    answers = []
    for target, directory in targets:
        report = query_calls(directory, _WAIT_S)
        if report is None:
            output.warn(f"{target}: its head does not answer")
            continue
        answers.append(Answer(target, draw(report.procs), report.missing))
    for answer in answers:
        for missing in answer.missing:
            output.warn(f"{answer.name}: no answer from {missing} within {_WAIT_S:g} s: its calls are not shown")
        for problem in answer.picture.problems:
            output.warn(f"{answer.name}: {problem}")
    return answers


def find_targets(name: str | None, config: Config) -> Sequence[tuple[str, Path]]:
    """Return name and directory of the allocation named *name*, or in the directory *name*; of all live if None."""
    from monarch_hpc.attach.embedded import find_local
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
        format_age(row.runs_s) if row.endpoint else "-",
        row.caller or "-",
        row.waits_for or "-",
        format_age(row.waits_s) if row.waits_s else "-",
        str(row.num_queued or "-"),
    ]


def format_age(seconds: float) -> str:
    """Format the age of a call or wait."""
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{left:02d}"


def _document(answer: Answer) -> dict[str, object]:
    return {
        **document_of(answer),
        "deadlocks": answer.picture.deadlocks,
        "rows": [asdict(row) for row in answer.picture.rows],
    }


def document_of(answer: Answer) -> dict[str, object]:
    """The fields that ``--calls`` and ``--endpoints`` have in common."""
    return {
        "name": answer.name,
        "missing": answer.missing,
        "problems": answer.picture.problems,
        "endpoints": [asdict(one) for one in answer.picture.endpoints],
    }
