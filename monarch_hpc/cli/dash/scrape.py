"""Asks the hosts for what the text for Prometheus tells."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from monarch_hpc.cli.dash.exposition import Scrape, render
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.telemetry.views.picture import draw
from monarch_hpc.wire.tables.calls import CALLS
from monarch_hpc.wire.tables.overview import HOSTS
from monarch_hpc.wire.tables.samples import GPU_SAMPLES, HOST_SAMPLES, GpuSample, HostSample
from monarch_hpc.wire.tables.schema import Table

__all__ = ["Scraper"]

R = TypeVar("R")
S = TypeVar("S", HostSample, GpuSample)

_WAIT_S = 2.0
_FRESH_SAMPLES = 3
"""Samples of a host that one may miss until its last one counts as old."""


class Scraper:
    """Text for Prometheus about some allocations.

    Args:
        targets: directories of the allocations by name.
        run: the only run of interest; None for all.
        every_s: the least time between two rounds of questions, however many ask for the text.
    """

    def __init__(self, targets: Mapping[str, Path], run: str | None, every_s: float) -> None:
        self._targets = targets
        self._where: dict[str, object] = {} if run is None else {"run": run}
        self._every_s = every_s
        self._lock = threading.Lock()
        self._asked_s = -float("inf")
        self._text = b""
        self._newest: dict[tuple[str, str], float] = {}

    def text(self) -> bytes:
        """Return the text, after asking the hosts."""
        with self._lock:
            if monotonic() - self._asked_s >= self._every_s:
                self._text = render([self._scrape(name, directory) for name, directory in self._targets.items()])
                self._asked_s = monotonic()
            return self._text

    def _scrape(self, name: str, directory: Path) -> Scrape:
        from monarch_hpc.allocation.settings import read_config
        from monarch_hpc.attach.head.client import HeadClient
        from monarch_hpc.attach.tables.overview import read_overview
        from monarch_hpc.attach.tables.rows import query_rows

        absent: set[str] = set()

        def ask(table: Table[R], where: Mapping[str, object], parts: Iterable[str] = ()) -> list[R]:
            answer = query_rows(head, table, _WAIT_S, where, parts)
            if answer is None:
                raise TimeoutError
            absent.update(answer.missing, answer.left_out)
            return answer.rows

        try:
            slack_s = _FRESH_SAMPLES * read_config(directory).telemetry.sample_s
            with contextlib.closing(HeadClient(directory)) as head:
                overview = read_overview(directory, [HOSTS.name], _WAIT_S, head)
                return Scrape(
                    name,
                    True,
                    hosts=HOSTS.read(overview.rows[HOSTS.name]),
                    calls=draw(ask(CALLS, self._where, ["endpoints"])).calls,
                    host_samples=self._latest(name, HOST_SAMPLES, ask, lambda one: one.host, slack_s),
                    gpu_samples=self._latest(name, GPU_SAMPLES, ask, lambda one: (one.host, one.uuid), slack_s),
                    num_missing=len(absent),  # after all answers
                )
        except (MonarchError, OSError):
            return Scrape(name, False)

    def _latest(
        self,
        allocation: str,
        table: Table[S],
        ask: Callable[[Table[S], Mapping[str, object]], list[S]],
        key: Callable[[S], object],
        slack_s: float,
    ) -> Sequence[S]:
        """The latest sample of each host or GPU, without those that are old compared with the latest of all."""
        place = (allocation, table.name)
        known = self._newest.get(place, 0.0)
        rows: list[S] = ask(table, {"t": [">=", known - slack_s]})
        newest = self._newest[place] = max([known, *(one.t for one in rows)])
        found: dict[object, S] = {}
        for one in sorted(rows, key=lambda one: one.t):
            if one.t >= newest - slack_s:
                found[key(one)] = one
        return list(found.values())
