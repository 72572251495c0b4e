"""`monarch-hpc status --endpoints`: number and duration of calls by endpoint, and their time in the queue."""

from __future__ import annotations

from monarch_hpc.cli.calls import NO_ALLOCATION, ask, document_of, find_targets, format_age
from monarch_hpc.cli.output import Console, Table
from monarch_hpc.config import Config
from monarch_hpc.telemetry.tally import Tally, Times

__all__ = ["show_endpoints"]


def show_endpoints(name: str | None, config: Config, output: Console) -> int:
    """Show the endpoints of the allocation named *name*, or in the directory *name*; of all live ones if None."""
    targets = find_targets(name, config)
    answers = ask(targets, output)
    found = [(answer.name, one) for answer in answers for one in answer.picture.endpoints]
    text: str | Table = "no endpoint has been called"
    if found:
        several = len({(allocation, one.run) for allocation, one in found}) > 1
        first = ["RUN"] if several else []
        columns = [*first, "ENDPOINT", "PROCS", "CALLS", "FAILED", "RAN P50", "P99", "MAX", "WAITED P50", "P99", "MAX"]
        text = Table(columns, [[*([one.run] if several else []), *_cells(one)] for _, one in found])
    elif not targets:
        text = NO_ALLOCATION
    document = {"allocations": [document_of(answer) for answer in answers]}
    output.show(document, text, [_label(one) for _, one in found])
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
