"""`monarch-hpc status --endpoints`: number and duration of calls by endpoint, and their time in the queue."""

from __future__ import annotations

from monarch_hpc.cli.output import TextTable
from monarch_hpc.cli.tables.calls import ask_calls, format_age
from monarch_hpc.cli.tables.question import NO_ALLOCATION, Question
from monarch_hpc.telemetry.views.tally import Tally, Times

__all__ = ["show_endpoints"]


def show_endpoints(question: Question) -> int:
    """Show the endpoints of the allocations that *question* names."""
    answers = ask_calls(question)
    found = [(one.answer.name, endpoint) for one in answers or () for endpoint in one.picture.endpoints]
    text: str | TextTable = "no endpoint has been called"
    if found:
        several = len({(allocation, one.run) for allocation, one in found}) > 1
        first = ["RUN"] if several else []
        columns = [*first, "ENDPOINT", "PROCS", "CALLS", "FAILED", "RAN P50", "P99", "MAX", "WAITED P50", "P99", "MAX"]
        text = TextTable(columns, [[*([one.run] if several else []), *_cells(one)] for _, one in found])
    elif answers is None:
        text = NO_ALLOCATION
    document = {"allocations": [one.document for one in answers or ()]}
    question.output.show(document, text, [_label(one) for _, one in found])
    return 0


def _label(one: Tally) -> str:
    return f"{one.name}.{one.endpoint}"


def _cells(one: Tally) -> list[str]:
    counts = [str(one.num_procs), str(one.num_calls), str(one.num_failed or "-")]
    return [_label(one), *counts, *_times(one.ran), *_times(one.queued)]


def _times(times: Times) -> list[str]:
    return [_took(seconds) for seconds in (times.p50_s, times.p99_s, times.longest_s)]


def _took(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.01:
        return f"{seconds * 1e3:.1f} ms"
    return format_age(seconds)
