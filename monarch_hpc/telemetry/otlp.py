"""Metrics and spans in the JSON of OpenTelemetry's protocol (OTLP over HTTP). Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from monarch_hpc.wire.tables.history import HistoryRow, MetricRow, SpanRow

__all__ = ["METRICS_PATH", "SPANS_PATH", "metrics_body", "spans_body"]

METRICS_PATH = "/v1/metrics"
SPANS_PATH = "/v1/traces"

_SCOPE = {"name": "monarch_hpc"}
_INTERNAL, _ERROR = 1, 2


def metrics_body(rows: Iterable[tuple[str, MetricRow]]) -> bytes:
    """Return the request for values of metrics, each with the incarnation of its process."""
    resources = []
    for (incarnation, first), some in _by_process(rows):
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in some:
            if not math.isfinite(row.value):
                continue  # JSON does not have these numbers
            attributes = _attributes({**_tags(row.tags), **_actor(row)})
            if row.step >= 0:
                attributes += _attributes({"step": row.step})
            point = {"timeUnixNano": _ns(row.t), "asDouble": row.value, "attributes": attributes}
            by_name.setdefault(row.name, []).append(point)
        metrics = [{"name": name, "gauge": {"dataPoints": points}} for name, points in by_name.items()]
        scope = [{"scope": _SCOPE, "metrics": metrics}]
        resources.append({"resource": _resource(first, incarnation), "scopeMetrics": scope})
    return _encode({"resourceMetrics": resources})


def spans_body(rows: Iterable[tuple[str, SpanRow]]) -> bytes:
    """Return the request for spans that have ended, each with the incarnation of its process; which are one trace."""
    resources = []
    for (incarnation, first), some in _by_process(rows):
        trace = hashlib.blake2b(f"{first.run} {incarnation}".encode(errors="replace"), digest_size=16).hexdigest()
        spans = []
        for row in some:
            span: dict[str, Any] = {
                "traceId": trace,
                "spanId": f"{row.span & (1 << 64) - 1:016x}",
                "name": _text(row.name),
                "kind": _INTERNAL,
                "startTimeUnixNano": _ns(row.t),
                "endTimeUnixNano": _ns(row.t + row.took_us * 1e-6),
                "attributes": _attributes({**_tags(row.tags), **_actor(row), "thread.id": row.thread}),
            }
            if row.parent:
                span["parentSpanId"] = f"{row.parent & (1 << 64) - 1:016x}"
            if row.status == "failed":
                span["status"] = {"code": _ERROR}
            spans.append(span)
        scope = [{"scope": _SCOPE, "spans": spans}]
        resources.append({"resource": _resource(first, incarnation), "scopeSpans": scope})
    return _encode({"resourceSpans": resources})


def _by_process(rows: Iterable[tuple[str, Any]]) -> list[tuple[tuple[str, Any], Sequence[Any]]]:
    found: dict[tuple[object, ...], tuple[str, list[Any]]] = {}
    for incarnation, row in rows:
        key = row.run, row.mesh, row.rank, row.host, row.pid
        found.setdefault(key, (incarnation, []))[1].append(row)
    return [((incarnation, some[0]), some) for incarnation, some in found.values()]


def _resource(row: HistoryRow, incarnation: str) -> dict[str, Any]:
    who = {"service.name": "monarch-hpc", "service.namespace": row.run, "service.instance.id": incarnation}
    place = {"host.name": row.host, "process.pid": row.pid, "mesh": row.mesh, "rank": row.rank}
    return {"attributes": _attributes({**who, **place})}


def _actor(row: MetricRow | SpanRow) -> dict[str, object]:
    return {"actor": row.actor, "actor_rank": row.actor_rank} if row.actor else {}


def _tags(text: str) -> dict[str, object]:
    try:
        tags = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return tags if isinstance(tags, dict) else {}


def _attributes(values: dict[str, object]) -> list[dict[str, Any]]:
    return [{"key": _text(key), "value": _value(value)} for key, value in values.items()]


def _value(value: object) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float) and math.isfinite(value):
        return {"doubleValue": value}
    return {"stringValue": _text(str(value))}


def _ns(t: float) -> str:
    return str(int(t * 1e9))


def _text(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON's readers may refuse."""
    return text.encode(errors="replace").decode()


def _encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
