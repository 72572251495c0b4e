"""Sends metrics and spans of a host's processes to a collector by OTLP, from a thread that nothing waits for."""

from __future__ import annotations

import http.client
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from monarch_hpc.core.clock import monotonic
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.history import incarnation_of, rows_of
from monarch_hpc.telemetry.kept.chunks import METRICS, SPANS
from monarch_hpc.telemetry.otlp import METRICS_PATH, SPANS_PATH, metrics_body, spans_body
from monarch_hpc.telemetry.reading import memory_of
from monarch_hpc.telemetry.scribe.drain import Drain
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.wire.tables.procs import RunProcess

__all__ = ["Exporter"]

_INTERVAL_S = 5.0
"""Time between two looks, as between two exports of OpenTelemetry's own batches."""

_MAX_ROWS = 5_000
"""Limit on the rows of one kind in a look, 1 000 a second: a row takes some 20 us. More are counted, and not sent."""

_MAX_BATCHES = 8
"""Batches that wait for the collector; more are counted, and not sent."""

_TIMEOUT_S = 5.0


class Exporter:
    """The exports of one host.

    Args:
        url: config key `telemetry.otlp_url`.
        host: name of the host.
        correction: the present correction of this host's clock.

    Attributes:
        num_sent: rows that the collector has taken.
        problem: why the last batch was not taken; empty if it was.
    """

    def __init__(self, url: str, host: str, correction: Callable[[], Correction]) -> None:
        self._url = url
        self._host = host
        self._correction = correction
        self._procs: dict[ProcPlace, tuple[int, Drain]] = {}
        self._due_s = monotonic() + _INTERVAL_S
        self._batches: queue.Queue[tuple[str, bytes, int] | None] = queue.Queue(_MAX_BATCHES)
        self.num_sent = 0
        self.problem = ""
        self._num_refused = 0  # by the collector
        self._num_left_out = 0
        self._thread = threading.Thread(target=self._send_all, name="monarch-otlp", daemon=True)
        self._thread.start()

    @property
    def num_unsent(self) -> int:
        """Rows that were not sent: too many, or the collector did not take them."""
        return self._num_refused + self._num_left_out

    def due_s(self) -> float:
        """The time until `work` has something to do, in seconds."""
        return self._due_s - monotonic()

    def add(self, place: ProcPlace, fd: int) -> None:
        """Begin to export the records of a process; the descriptor stays the caller's."""
        self._procs[place] = fd, Drain(memory_of(fd), {})

    def end(self, place: ProcPlace) -> None:
        """Take the last records of a process."""
        if place in self._procs:
            self._take([place])
            del self._procs[place]

    def work(self) -> None:
        """Take what is due."""
        if self.due_s() <= 0:
            self._due_s = monotonic() + _INTERVAL_S
            self._take(list(self._procs))

    def _take(self, places: Iterable[ProcPlace]) -> None:
        rows: dict[str, list[tuple[str, Any]]] = {METRICS: [], SPANS: []}
        for place in places:
            fd, drain = self._procs[place]
            memory = memory_of(fd)
            process = RunProcess(place.run, place.mesh, place.rank, self._host, place.pid, "ready", "")
            incarnation = incarnation_of(memory)
            for taken in drain.take(only=(METRICS, SPANS)):
                self._num_left_out += taken.num_lost
                found = [*rows_of(taken.what, memory, process, self._correction(), taken.records)]
                room = max(_MAX_ROWS - len(rows[taken.what]), 0)
                self._num_left_out += max(len(found) - room, 0)
                rows[taken.what] += [(incarnation, row) for row in found[:room]]
        for what, path, make in ((METRICS, METRICS_PATH, metrics_body), (SPANS, SPANS_PATH, spans_body)):
            if rows[what]:
                try:
                    self._batches.put_nowait((path, make(rows[what]), len(rows[what])))
                except queue.Full:
                    self._num_left_out += len(rows[what])

    # ---- on the thread ----

    def _send_all(self) -> None:
        while (batch := self._batches.get()) is not None:
            path, body, num = batch
            try:
                self.problem = self._send(path, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.problem = str(error) or type(error).__name__
            if self.problem:
                self._num_refused += num
            else:
                self.num_sent += num

    def _send(self, path: str, body: bytes) -> str:
        parts = urlsplit(self._url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
        try:
            connection.request("POST", parts.path.rstrip("/") + path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read(1 << 16)
            return "" if 200 <= answer.status < 300 else f"the collector answers {answer.status} {answer.reason:.80}"
        finally:
            connection.close()

    def close(self) -> None:
        """Take and send what is there, if the collector takes it at once."""
        self._take(list(self._procs))
        try:
            self._batches.put_nowait(None)
        except queue.Full:
            return  # the thread is a daemon
        self._thread.join(1.0)
