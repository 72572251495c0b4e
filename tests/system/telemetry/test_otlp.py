"""Metrics and spans at a collector; one that is out of reach, or refuses, costs nothing but a count."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import monarch_hpc
from monarch_hpc import Actor, endpoint
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.core.clock import monotonic
from monarch_hpc.telemetry.clock import Correction
from monarch_hpc.telemetry.layout import NO_STEP
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.telemetry.scribe.exporter import Exporter
from monarch_hpc.telemetry.scribe.sampling.procs import ProcPlace
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.keeping import KEEPING, HostKeeping
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0
PLACE = ProcPlace("run", 1, 2, 77)


class Collector(http.server.ThreadingHTTPServer):
    """A collector on loopback that keeps what it gets."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[tuple[str, Any]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), _Handler)
        self.thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/otlp/"

    def of(self, path: str) -> list[Any]:
        return [body for where, body in self.bodies if where == path]

    def end(self) -> None:
        self.shutdown()
        self.server_close()
        self.thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.status == 200:
            self.server.bodies.append((self.path, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.end()


class Written:
    """A process that records, and the exporter of its host."""

    def __init__(self, url: str) -> None:
        self.fd = make_memory("proc")
        self.recorder = Recorder(os.dup(self.fd), 0xABC)
        self.mark = self.recorder.actor(7, "trainer", 3).mark
        self.exporter = Exporter(url, "n1", lambda: Correction(0, 1.0))
        self.exporter.add(PLACE, self.fd)

    def metric(self, value: float, step: int = NO_STEP) -> None:
        names = self.recorder.names
        self.recorder.metric(self.mark, names.metric("loss"), names.tags({"split": "a", "n": 1}), step, value)

    def close(self) -> None:
        self.exporter.end(PLACE)
        self.exporter.close()
        self.recorder.close()
        os.close(self.fd)


def attributes(found: list[dict[str, Any]]) -> dict[str, object]:
    return {one["key"]: next(iter(one["value"].values())) for one in found}


def test_metrics_and_spans_arrive_once(collector: Collector) -> None:
    written = Written(collector.url)
    written.metric(0.5, 10)
    written.metric(float("nan"))
    outer = written.recorder.rings.span(written.mark, written.recorder.names.span("outer"), 0, 0)
    written.recorder.rings.span(written.mark, written.recorder.names.span("inner"), 0, outer.number).end(failed=True)
    written.close()
    (metrics,) = collector.of("/otlp/v1/metrics")
    (resource,) = metrics["resourceMetrics"]
    who = attributes(resource["resource"]["attributes"])
    assert (who["service.namespace"], who["host.name"]) == ("run", "n1")
    assert str(who["service.instance.id"]).lstrip("0") == "abc"
    assert (who["rank"], who["process.pid"]) == ("2", "77")
    (metric,) = resource["scopeMetrics"][0]["metrics"]
    (point,) = metric["gauge"]["dataPoints"]
    assert (metric["name"], point["asDouble"]) == ("loss", 0.5)
    labels = {"split": "a", "n": "1", "actor": "trainer", "actor_rank": "3", "step": "10"}
    assert attributes(point["attributes"]) == labels
    (spans,) = collector.of("/otlp/v1/traces")
    (span,) = spans["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["name"], span["status"], span["parentSpanId"]) == ("inner", {"code": 2}, f"{outer.number:016x}")
    assert len(span["traceId"]) == 32 and len(span["spanId"]) == 16
    assert int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) > 0
    assert (written.exporter.num_sent, written.exporter.num_unsent, written.exporter.problem) == (3, 0, "")


def test_a_collector_that_is_out_of_reach_or_refuses_is_counted_and_not_waited_for(collector: Collector) -> None:
    refusing = Written(collector.url)
    collector.status = 503
    unreachable = Written("http://127.0.0.1:9/")
    for written in (refusing, unreachable):
        begin_s = monotonic()
        for number in range(20):
            written.metric(number)
        written.exporter.end(PLACE)
        assert monotonic() - begin_s < 5.0
        wait_until("the count", lambda one=written: one.exporter.num_unsent, _PATIENCE_S)  # type: ignore[misc]
        assert (written.exporter.num_sent, written.exporter.num_unsent) == (0, 20)
        written.close()
    assert "503" in refusing.exporter.problem and "refused" in unreachable.exporter.problem


@pytest.mark.slow  # five seconds until the helper looks
def test_the_helper_exports_what_procs_log_if_it_is_told_to(collector: Collector) -> None:
    config = load().config
    config = replace(config, telemetry=replace(config.telemetry, otlp_url=collector.url))
    with controlled(config, 1) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        procs.spawn("logger", Logger).log.call().get(_PATIENCE_S)

        def row() -> HostKeeping:
            answer = query_rows(Path(os.environ[DIRECTORY_VARIABLE]), KEEPING, _PATIENCE_S)
            assert answer is not None
            return answer.rows[0]

        wait_until("the export", lambda: row().exported >= 1, _PATIENCE_S)
        assert (row().unexported, row().export_problem, row().keeps) == (0, "", False)
    assert any("loss" in json.dumps(body) for body in collector.of("/otlp/v1/metrics"))


class Logger(Actor):
    @endpoint
    def log(self) -> None:
        monarch_hpc.log_metric("loss", 0.5)
