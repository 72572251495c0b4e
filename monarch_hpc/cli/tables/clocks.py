"""`monarch-hpc status --clocks`: how far the clocks of hosts differ from that of the head's host."""

from __future__ import annotations

from dataclasses import asdict

from monarch_hpc.cli.output import TextTable
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.core.text.units import format_duration
from monarch_hpc.wire.tables.clocks import CLOCKS, HostClock

__all__ = ["show_clocks"]


def show_clocks(question: Question) -> int:
    """Show the clocks of the hosts of the allocations that *question* names."""
    answers = question.ask(CLOCKS)
    rows = [row for answer in answers or () for row in sorted(answer.rows, key=lambda row: row.host)]
    text: str | TextTable = "no host answers"
    if rows:
        text = TextTable(["HOST", "AHEAD", "ERROR", "ROUND TRIP", "COMPARED"], [_cells(row) for row in rows])
    elif answers is None:
        text = NO_ALLOCATION
    documents = [{**answer.document, "rows": [asdict(row) for row in answer.rows]} for answer in answers or ()]
    question.output.show({"allocations": documents}, text, [row.host for row in rows])
    return 0


def _cells(row: HostClock) -> list[str]:
    if row.error_us < 0:
        return [row.host, "-", "unknown", "-", "never"]
    return [
        row.host,
        _microseconds(row.ahead_us),
        f"±{_microseconds(row.error_us)}",
        _microseconds(row.round_trip_us),
        f"{format_duration(row.age_s)} ago",
    ]


def _microseconds(number: float) -> str:
    return f"{number / 1000:.1f} ms" if abs(number) >= 10_000 else f"{number:.0f} us"
