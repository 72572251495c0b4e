"""`monarch-hpc status --procs`: the processes of all runs, with their memory."""

from __future__ import annotations

from dataclasses import asdict

from monarch_hpc.cli.output import TextTable
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.core.ids import number_in_program
from monarch_hpc.core.text.units import format_size
from monarch_hpc.wire.tables.procs import PROCS, ProcRow

__all__ = ["show_procs"]


def show_procs(question: Question) -> int:
    """Show the procs and programs of the allocations that *question* names."""
    answers = question.ask(PROCS)
    rows = [row for answer in answers or () for row in answer.rows]
    text: str | TextTable = "no proc and no program is running"
    if rows:
        text = TextTable(["RUN", "MESH", "RANK", "HOST", "PID", "STATE", "MEMORY"], [_cells(row) for row in rows])
    elif answers is None:
        text = NO_ALLOCATION
    documents = [{**answer.document, "rows": [asdict(row) for row in answer.rows]} for answer in answers or ()]
    question.output.show({"allocations": documents}, text, [str(row.pid) for row in rows if row.rss_bytes])
    return 0


def _cells(row: ProcRow) -> list[str]:
    program = row.mesh < 0
    return [
        row.run,
        "program" if program else str(number_in_program(row.mesh)),
        "-" if program else str(row.rank),
        row.host,
        str(row.pid or "-"),
        f"{row.state}: {row.cause}" if row.cause else row.state,
        format_size(row.rss_bytes) if row.rss_bytes else "-",
    ]
