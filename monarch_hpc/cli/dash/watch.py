"""Asks the hosts while a page is open, once for all pages, and answers their questions in SQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from monarch_hpc.agent.output.retention import printed_runs
from monarch_hpc.cli.dash.document import chart_document, encode, failure_document, picture_document
from monarch_hpc.cli.dash.scrape import Scraper
from monarch_hpc.cli.runs.sources import Choice, find_sources
from monarch_hpc.cli.tables.top import WatchedHosts
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.errors import MonarchError, QueryError
from monarch_hpc.telemetry.shipped import question, shipped_questions
from monarch_hpc.telemetry.views.series import MetricStore
from monarch_hpc.telemetry.views.sighting import Sighting
from monarch_hpc.wire.tables.history import HANDLED, METRICS, HandledCall

__all__ = ["Watch"]

_WAIT_S = 2.0
_SQL_S = 10.0
_SLACK_S = 5.0
"""Metrics of so long before the latest known one are asked for again: hosts report at different moments."""

_HISTORY_EVERY = 2
"""Metrics and failures are asked for in every second round: they are larger than states, and less urgent."""

_MAX_ROWS = 1000
_MAX_LOG_LINES = 500
_MAX_LOG_CHARS = 200_000
_MAX_QUERIES = 2
"""Queries at a time: each has an engine of some 120 MB."""


class Watch:
    """The latest picture of some allocations.

    Args:
        targets: directories of the allocations by name.
        run: the only run of interest; None for all.
        every_s: time between two rounds of questions.

    Attributes:
        scraper: what it tells collectors of metrics.
    """

    def __init__(self, targets: Mapping[str, Path], run: str | None, every_s: float) -> None:
        self.scraper = Scraper(targets, run, every_s)
        self._targets = targets
        self._run = run
        self._every_s = every_s
        self._hosts = WatchedHosts(targets, run)
        self._seen = Sighting()
        self._metrics = MetricStore()
        self._newest: dict[str, float] = {}
        self._num_watchers = 0
        self._closed = False
        self._changed = threading.Condition()
        self._events: dict[str, tuple[int, bytes]] = {}
        self._version = 0
        self._queries = threading.BoundedSemaphore(_MAX_QUERIES)
        self._publish("about", encode({"questions": shipped_questions()}))
        self._thread = threading.Thread(target=self._ask_hosts, name="dash", daemon=True)

    def start(self) -> None:
        """Begin to ask as soon as a page is open."""
        self._thread.start()

    def close(self) -> None:
        """Stop asking; all who look get no more events."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._hosts.close()

    def events(self, idle_s: float) -> Iterator[tuple[str, bytes]]:
        """Yield the latest events, and each later one; an empty one after *idle_s* seconds without any."""
        sent: dict[str, int] = {}
        with self._changed:
            self._num_watchers += 1
            self._changed.notify_all()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or bool(self._later(sent)), idle_s)
                    if self._closed:
                        return
                    later = self._later(sent)
                for name, version, body in later:
                    sent[name] = version
                    yield name, body
                if not later:
                    yield "", b""
        finally:
            with self._changed:
                self._num_watchers -= 1

    def _later(self, sent: Mapping[str, int]) -> list[tuple[str, int, bytes]]:
        return [(name, version, body) for name, (version, body) in self._events.items() if sent.get(name, -1) < version]

    def _ask_hosts(self) -> None:
        rounds = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._num_watchers > 0)
                if self._closed:
                    return
            begun_s = monotonic()
            try:
                self.look()
                if rounds % _HISTORY_EVERY == 0:
                    self.look_back()
            except (MonarchError, OSError) as error:
                self._publish("problem", encode({"text": f"an answer cannot be shown: {error}"}))
            rounds += 1
            with self._changed:
                self._changed.wait_for(lambda: self._closed, max(self._every_s - (monotonic() - begun_s), 0.0))

    def look(self) -> dict[str, object]:
        """Ask what all ranks do, and return that."""
        self._seen = self._hosts.look(self._seen)
        document = picture_document(self._seen, time.time())
        self._publish("picture", encode(document))
        return document

    def look_back(self) -> dict[str, object]:
        """Ask for metrics and failures, and return them."""
        from monarch_hpc.attach.tables.rows import query_rows

        where: dict[str, object] = {} if self._run is None else {"run": self._run}
        failed: list[HandledCall] = []
        for name, head in self._hosts.heads.items():
            newest = self._newest.get(name, 0.0)
            metrics = query_rows(head, METRICS, _WAIT_S, {**where, "t": [">=", newest - _SLACK_S]})
            if metrics is not None:
                self._metrics.add(name, metrics.rows)
                if not (metrics.missing or metrics.left_out):
                    self._newest[name] = max([newest, *(row.t for row in metrics.rows)])
            calls = query_rows(head, HANDLED, _WAIT_S, {**where, "status": "failed"})
            failed += [] if calls is None else calls.rows
        document: dict[str, object] = {
            "charts": chart_document(self._metrics.charts()),
            "failures": failure_document(failed, self._seen),
        }
        self._publish("history", encode(document))
        return document

    def _publish(self, name: str, body: bytes) -> None:
        with self._changed:
            if self._events.get(name, (0, b""))[1] != body:
                self._version += 1
                self._events[name] = self._version, body
                self._changed.notify_all()

    def stack(self, place: Sequence[str]) -> str:
        """Return the stacks of a proc, given by its allocation, run, mesh, rank, host and pid."""
        for proc in self._seen.procs:
            one = proc.process
            if [proc.allocation, one.run, str(one.mesh), str(one.rank), one.host, str(one.pid)] == list(place):
                return "\n".join(self._hosts.stack(proc))
        return "this proc is not there any more"

    def logs(self, allocation: str, run: str, rank: str) -> str:
        """Return the end of the output of a rank, or of the program if *rank* is -1."""
        directory = self._targets.get(allocation)
        if directory is None or run not in printed_runs(directory):
            return "it has written nothing that is kept"
        number = int(rank) if rank.isdecimal() and len(rank) < 10 else -1
        ranks = (range(number, number + 1),) if number >= 0 else ()
        sources = [one for one in find_sources(directory, run, Choice(ranks)) if one.rank == number]
        parts = [f"{one.label}\n" + "\n".join(one.last(0.0).splitlines()[-_MAX_LOG_LINES:]) for one in sources]
        return "\n\n".join(parts)[-_MAX_LOG_CHARS:] or "it has written nothing that is kept"

    def query(self, order: object) -> dict[str, object]:
        """Answer a question in SQL.

        Raises:
            QueryError: it is wrong, or is not answered in time, or too many are.
        """
        fields = order if isinstance(order, dict) else {}
        sql, name = fields.get("sql"), fields.get("ask")
        if isinstance(name, str):
            sql = question(name)
        if not isinstance(sql, str) or not sql.strip():
            raise QueryError("there is no question: write one in SQL")
        if not self._queries.acquire(blocking=False):
            raise QueryError(f"{_MAX_QUERIES} queries are under way: wait for their answers")
        try:
            return self._answer(sql)
        finally:
            self._queries.release()

    def _answer(self, sql: str) -> dict[str, object]:
        from monarch_hpc.attach.tables.sql import open_question

        with open_question(sql, self._targets.values(), _SQL_S) as asked:
            found = asked.collect(_SQL_S, form="json")
            found.check_inputs()
            answer = asked.finish(found, "json", _SQL_S)
        return {
            "columns": answer.columns,
            "rows": answer.rows[:_MAX_ROWS],
            "num_rows": answer.num_rows,
            "missing": [*found.missing, *found.left_out],
            "cut": found.cut,
            "sql": sql,
        }
