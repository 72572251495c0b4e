"""`monarch-hpc status --calls`: running calls, their callers, and which actors wait for which."""

from __future__ import annotations

from dataclasses import asdict

from monarch_hpc.cli.output import TextTable
from monarch_hpc.cli.tables.question import NO_ALLOCATION, AllocationRows, Question
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.views.picture import Picture, Row, draw
from monarch_hpc.wire.tables.calls import CALLS, ProcCalls

__all__ = ["CallsAnswer", "ask_calls", "format_age", "show_calls"]


@dataclass(frozen=True, slots=True)
class CallsAnswer:
    """The calls of one allocation, as people understand them."""

    answer: AllocationRows[ProcCalls]
    picture: Picture

    @property
    def document(self) -> dict[str, object]:
        """The fields that ``--calls`` and ``--endpoints`` have in common."""
        endpoints = [asdict(one) for one in self.picture.endpoints]
        return {**self.answer.document, "problems": self.picture.problems, "endpoints": endpoints}


def ask_calls(question: Question) -> list[CallsAnswer] | None:
    """Return the calls of allocations; None if there is no allocation."""
    answers = question.ask(CALLS)
    if answers is None:
        return None
    found = [CallsAnswer(answer, draw(answer.rows)) for answer in answers]
    for one in found:
        for problem in one.picture.problems:
            question.output.warn(f"{one.answer.name}: {problem}")
    return found


def show_calls(question: Question) -> int:
    """Show the calls of the allocations that *question* names."""
    output, answers = question.output, ask_calls(question)
    rows = [(one.answer.name, row) for one in answers or () for row in one.picture.rows]
    text: str | TextTable = "no actor and no program is running"
    if rows:
        several = len({(allocation, row.run) for allocation, row in rows}) > 1
        first = ["RUN"] if several else []
        last = ["OPERATION"] if any(row.operation for _, row in rows) else []
        columns = [*first, "ACTOR", "PROC", "STATE", "RUNS", "SINCE", "FOR", "WAITS FOR", "SINCE", "QUEUED", *last]
        cells = [[*([row.run] if several else []), *_cells(row), row.operation or "-"] for _, row in rows]
        text = TextTable(columns, [line[: len(columns)] for line in cells])
    elif answers is None:
        text = NO_ALLOCATION
    document = {"allocations": [_document(one) for one in answers or ()]}
    output.show(document, text, [row.actor for _, row in rows if row.actor])
    for one in answers or ():
        for ring in one.picture.deadlocks:
            output.warn(f"deadlock: {' -> '.join([*ring, ring[0]])}")
    return 0


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


def _document(one: CallsAnswer) -> dict[str, object]:
    rows = [asdict(row) for row in one.picture.rows]
    return {**one.document, "deadlocks": one.picture.deadlocks, "rows": rows}
