"""`monarch-hpc status --memory`: what processes lend to others, and how fast their last transfers were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from monarch_hpc.cli.output import TextTable
from monarch_hpc.cli.tables.calls import format_age
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.core.ids import number_in_program
from monarch_hpc.core.text.units import format_size
from monarch_hpc.wire.tables.memory import MEMORY, ProcMemory

__all__ = ["show_memory"]


def show_memory(question: Question) -> int:
    """Show the memory of procs and programs of the allocations that *question* names."""
    answers = question.ask(MEMORY)
    rows = [row for answer in answers or () for row in answer.rows if row.use.lent or row.use.moved]
    text: str | TextTable = "no actor lends memory, and none has used that of another"
    if rows:
        lines = [line for row in rows for line in _lines(row)]
        text = TextTable(["RUN", "MESH", "RANK", "HOST", "WHAT", "NUMBER", "BYTES", "GB/S", "AGO"], lines)
    elif answers is None:
        text = NO_ALLOCATION
    documents = [{**answer.document, "rows": [asdict(row) for row in answer.rows]} for answer in answers or ()]
    question.output.show({"allocations": documents}, text, [str(row.pid) for row in rows])
    return 0


def _lines(row: ProcMemory) -> Iterator[list[str]]:
    program = row.mesh < 0
    first = [row.run, "program" if program else str(number_in_program(row.mesh)), "-" if program else str(row.rank)]
    first.append(row.host)
    for lent in row.use.lent:
        who = f"lent by {lent.name}[{lent.rank}]" if lent.name else "lent"
        yield [*first, who, str(lent.num), format_size(lent.num_bytes), "-", "-"]
    for moved in row.use.moved:
        what = f"{'written to' if moved.write else 'read from'} {moved.host} by {moved.path}"
        rate = f"{moved.num_bytes / moved.took_s / 1e9:.2f}" if moved.took_s else "-"
        yield [*first, what, str(moved.num), format_size(moved.num_bytes), rate, format_age(moved.age_s)]
