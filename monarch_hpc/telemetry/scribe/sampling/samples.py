"""The samples of a host: taken at an interval, and the latest ten minutes of them kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Protocol

from monarch_hpc.telemetry.scribe.sampling.gpus import NvidiaGpus, load_nvml, sample_amd
from monarch_hpc.telemetry.scribe.sampling.host import HostSampler
from monarch_hpc.telemetry.scribe.sampling.net import sample_ports
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace, sample_proc
from monarch_hpc.wire.tables.answer import Sources
from monarch_hpc.wire.tables.samples import GPU_SAMPLES, HOST_SAMPLES, NET_SAMPLES, PROC_SAMPLES, SAMPLES
from monarch_hpc.wire.tables.schema import MAX_ROWS

__all__ = ["Samples"]

_WINDOW_S = 600.0
_FRESH_S = 0.5
"""An answer begins with a look that is not older."""

_WATCHED_S = 60.0
"""Time after a question for samples of GPUs in which another one is expected: `top`, `dash` and scrapers come again
sooner."""


class _Timed(Protocol):
    @property
    def t(self) -> float: ...


class Samples:
    """The latest samples of this host.

    Args:
        gpus: numbers or UUIDs of the granted GPUs.
        sample_s: time between two looks.
        num_oom_kills: reads the counter of OOM kills of the job's control group.
        now_s: Unix time by the clock of the head's host.
    """

    def __init__(
        self,
        host: str,
        gpus: Sequence[str],
        sample_s: float,
        num_oom_kills: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        self._host = host
        self._gpus = gpus
        self._sample_s = sample_s
        self._now_s = now_s
        self._host_sampler = HostSampler(host, num_oom_kills)
        self._nvidia: NvidiaGpus | None = None
        if gpus and (nvml := load_nvml()) is not None:
            self._nvidia = NvidiaGpus(nvml, gpus)
        self._rows: dict[str, deque[Any]] = {name: deque(maxlen=MAX_ROWS) for name in SAMPLES}
        self._last_s = self._asked_s = -_WINDOW_S

    def due_s(self) -> float:
        """The time until the next look is due, in seconds; 0 or less if it is."""
        return min(self._last_s + self._sample_s - self._now_s(), self._sample_s)

    def asked(self, tables: Collection[str]) -> None:
        """Note a question for these tables."""
        if GPU_SAMPLES.name in tables:
            self._asked_s = self._now_s()

    def take(self, procs: Collection[ProcPlace]) -> Mapping[str, list[Any]]:
        """Look at everything; return the rows of this look by table."""
        t = self._last_s = round(self._now_s(), 6)
        pids = {place.pid for place in procs}
        found: dict[str, list[Any]] = {
            PROC_SAMPLES.name: [row for one in procs if (row := sample_proc(one, self._host, t)) is not None],
            HOST_SAMPLES.name: [self._host_sampler.sample(t)],
            NET_SAMPLES.name: [*sample_ports(self._host, t)],
            GPU_SAMPLES.name: [*self._sample_gpus(t, pids)],
        }
        for name, rows in found.items():
            kept = self._rows[name]
            kept.extend(rows)
            while kept and kept[0].t < t - _WINDOW_S:
                kept.popleft()
        return found

    def _sample_gpus(self, t: float, pids: Collection[int]) -> Iterable[Any]:
        if not self._gpus:
            return ()
        watched = t - self._asked_s < _WATCHED_S
        nvidia = () if self._nvidia is None else self._nvidia.sample(self._host, t, pids, watched=watched)
        return chain(nvidia, sample_amd(self._host, t, self._gpus))

    @property
    def is_stale(self) -> bool:
        """Whether the latest look is older than an answer should be."""
        return self._now_s() - self._last_s >= min(_FRESH_S, self._sample_s)

    @property
    def sources(self) -> Sources:
        """The tables, with their rows, the latest first."""
        return {name: partial(_latest_first, rows) for name, rows in self._rows.items()}


def _latest_first(rows: deque[_Timed]) -> Iterator[_Timed]:
    return reversed(rows)
