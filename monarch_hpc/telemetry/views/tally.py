"""Call statistics by endpoint, summed over all processes of a run: counts, run times, queueing times. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.histogram import added, quantile
from monarch_hpc.wire.tables.calls import EndpointCount, ProcCalls

__all__ = ["Tally", "Times", "tally"]


@dataclass(frozen=True, slots=True)
class Times:
    """Durations of all calls of one endpoint, in seconds.

    Attributes:
        p50_s: the median; an estimate, see `histogram.quantile`.
        p99_s: the 99th percentile; likewise.
    """

    total_s: float
    p50_s: float
    p99_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class Tally:
    """Statistics of one endpoint of one actor mesh, since its processes started.

    Attributes:
        name: name of the mesh.
        num_procs: number of processes that have handled such calls, including dead ones that are still known.
        ran: run times.
        queued: queueing times, in the process that handled the call.
    """

    run: str
    name: str
    endpoint: str
    num_procs: int
    num_calls: int
    num_failed: int
    ran: Times
    queued: Times


@dataclass(slots=True)
class _Sum:
    num_procs: int = 0
    num_calls: int = 0
    num_failed: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0
    ran: list[int] = field(default_factory=list)
    queued_total_s: float = 0.0
    queued_longest_s: float = 0.0
    queued: list[int] = field(default_factory=list)

    def add(self, count: EndpointCount) -> None:
        self.num_procs += 1
        self.num_calls += count.num_calls
        self.num_failed += count.num_failed
        self.total_s += count.total_s
        self.longest_s = max(self.longest_s, count.longest_s)
        self.ran = added(self.ran, count.ran)
        self.queued_total_s += count.queued_total_s
        self.queued_longest_s = max(self.queued_longest_s, count.queued_longest_s)
        self.queued = added(self.queued, count.queued)


def tally(procs: Iterable[ProcCalls]) -> list[Tally]:
    """Add up the counts of *procs*, which must not repeat; sorted by run, then by total run time, longest first."""
    sums: dict[tuple[str, str, str], _Sum] = {}
    for proc in procs:
        for count in proc.scene.endpoints:
            sums.setdefault((proc.run, count.name, count.endpoint), _Sum()).add(count)
    found = [
        Tally(
            *key,
            one.num_procs,
            one.num_calls,
            one.num_failed,
            _times(one.ran, one.total_s, one.longest_s),
            _times(one.queued, one.queued_total_s, one.queued_longest_s),
        )
        for key, one in sums.items()
    ]
    return sorted(found, key=lambda one: (one.run, -one.ran.total_s, one.name, one.endpoint))


def _times(counts: list[int], total_s: float, longest_s: float) -> Times:
    p50_s, p99_s = (round(quantile(counts, share, longest_s), 9) for share in (0.5, 0.99))
    return Times(round(total_s, 9), p50_s, p99_s, longest_s)
