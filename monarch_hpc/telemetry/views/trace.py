"""Records of many processes as a trace in Chrome's JSON format, which Perfetto shows: calls, spans, arrows. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.calls import PROGRAM_MESH
from monarch_hpc.wire.tables.history import HandledCall, HistoryRow, MetricRow, SendRow, SpanRow, TransferRow

__all__ = ["TraceRows", "start_of", "trace_events"]

_MARK_US = 1.0
"""Length of the mark at the sender of a call, to which its arrow is tied."""

_TRANSFERS = "transfers of memory"
_PROGRAM = "program"

_Event = dict[str, object]


@dataclass(frozen=True, slots=True)
class TraceRows:
    """The rows of which a trace is made."""

    handled: Sequence[HandledCall] = ()
    sends: Sequence[SendRow] = ()
    spans: Sequence[SpanRow] = ()
    transfers: Sequence[TransferRow] = ()
    metrics: Sequence[MetricRow] = ()

    @property
    def all(self) -> Iterator[HistoryRow]:
        """All rows."""
        for rows in (self.handled, self.sends, self.spans, self.transfers, self.metrics):
            yield from rows


@dataclass(slots=True)
class _Slice:
    """One bar of a track; Chrome's format nests the bars of a lane by their times."""

    begin_us: float
    end_us: float
    name: str
    kind: str
    args: _Event
    lane: int = 0


@dataclass(slots=True)
class _Process:
    """One process of the trace, and its tracks: actors, the program, transfers."""

    number: int
    row: HistoryRow
    tracks: dict[str, list[_Slice]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        who = _PROGRAM if self.row.mesh == PROGRAM_MESH else f"r{self.row.rank:02d}"
        error = f"±{self.row.error_us:.0f} µs" if self.row.error_us >= 0 else "clock not compared"
        return f"{who} {self.row.host} ({error})"


def start_of(rows: TraceRows) -> float:
    """The time of the earliest row, in seconds of Unix time; infinite without rows."""
    return min((row.t for row in rows.all), default=math.inf)


def trace_events(rows: TraceRows, start_s: float) -> Iterator[_Event]:
    """Yield the events of a trace, whose time begins at *start_s*; nothing without rows.

    A call is a bar on the track of its actor, and an arrow leads to it from its sender. Times are in microseconds, as
    the format wants it; rows have been corrected to one clock, and the names of processes show the error.
    """

    def us(t: float) -> float:
        return round((t - start_s) * 1e6, 3)

    processes: dict[tuple[str, int, int, str, int], _Process] = {}

    def process_of(row: HistoryRow) -> _Process:
        key = row.run, row.mesh, row.rank, row.host, row.pid
        return processes.setdefault(key, _Process(len(processes) + 1, row))

    def add(row: HistoryRow, track: str, name: str, kind: str, took_us: float, args: _Event) -> _Slice:
        begin_us = us(row.t)
        bar = _Slice(begin_us, begin_us + max(took_us, 0.001), name, kind, args)
        process_of(row).tracks.setdefault(track, []).append(bar)
        return bar

    senders = {
        (one.incarnation, one.call, one.through_tree): (one, add(one, *_mark_of(one))) for one in rows.sends if one.call
    }
    for one in rows.sends:
        if not one.call:
            add(one, *_mark_of(one))
    arrows = []
    for call in rows.handled:
        args: _Event = {
            "status": call.status,
            "queued_us": call.queued_us,
            "bytes": call.bytes,
            "answer_bytes": call.answer_bytes,
        }
        if call.error:
            args |= {"error": call.error, "line": call.line}
        track = _track(call.actor, call.actor_rank)
        bar = add(call, track, call.endpoint, "call", call.ran_us, args)
        sender = senders.get((call.caller, call.call, call.through_tree)) if call.call else None
        if sender is not None:
            arrows.append((sender, call, bar))
    for span in rows.spans:
        track = _track(span.actor, span.actor_rank)
        add(span, track, span.name, "span", span.took_us, {"status": span.status, "tags": span.tags})
    for move in rows.transfers:
        name = f"{'write to' if move.write else 'read from'} {move.peer_host} by {move.path}"
        add(move, _TRANSFERS, name, "transfer", move.took_us, {"bytes": move.bytes, "status": move.status})
    counters = [(process_of(one).number, _counter(one, us(one.t))) for one in rows.metrics if math.isfinite(one.value)]

    threads: dict[tuple[int, str, int], int] = {}
    for process in processes.values():
        yield _name("process_name", process.number, 0, process.name)
        for track, bars in process.tracks.items():
            num_lanes = _place(bars)
            for lane in range(num_lanes):
                thread = threads[process.number, track, lane] = len(threads) + 1
                label = track if lane == 0 else f"{track} ({lane + 1})"
                yield _name("thread_name", process.number, thread, label)
            for bar in bars:
                yield {
                    "ph": "X",
                    "pid": process.number,
                    "tid": threads[process.number, track, bar.lane],
                    "ts": bar.begin_us,
                    "dur": round(bar.end_us - bar.begin_us, 3),
                    "name": bar.name,
                    "cat": bar.kind,
                    "args": bar.args,
                }
    for number, event in counters:
        yield {"ph": "C", "pid": number, **event}
    for number, ((send, mark), call, bar) in enumerate(arrows, 1):
        begin = process_of(send).number, _sender_track(send), mark.lane
        end = process_of(call).number, _track(call.actor, call.actor_rank), bar.lane
        # By clocks that differ within their error, a call may seem to begin before it was sent.
        end_us = min(max(bar.begin_us, mark.begin_us), bar.end_us)
        common: _Event = {"name": "call", "cat": "call", "id": number}
        yield {"ph": "s", "pid": begin[0], "tid": threads[begin], "ts": mark.begin_us, **common}
        yield {"ph": "f", "bp": "e", "pid": end[0], "tid": threads[end], "ts": end_us, **common}


def _mark_of(send: SendRow) -> tuple[str, str, str, float, _Event]:
    """Track, name, kind, length and arguments of the mark of a call at its sender."""
    args: _Event = {
        "to": f"{send.target_actor} on {send.target_host}" if send.target_host else send.target_actor,
        "num_receivers": send.num_receivers,
        "bytes": send.bytes,
        "took_us": send.took_us,
        "status": send.status,
    }
    return _sender_track(send), f"call {send.endpoint}", "send", _MARK_US, args


def _sender_track(send: SendRow) -> str:
    return _track(send.actor, send.actor_rank)


def _track(actor: str, rank: int) -> str:
    return f"{actor}[{rank}]" if actor else _PROGRAM


def _counter(metric: MetricRow, ts: float) -> _Event:
    return {"ts": ts, "name": metric.name, "args": {_track(metric.actor, metric.actor_rank): metric.value}}


def _name(what: str, process: int, thread: int, name: str) -> _Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": {"name": name}}


def _place(bars: list[_Slice]) -> int:
    """Give each bar a lane, in which it is in another bar or beside all; return their number."""
    open_ends: list[list[float]] = []
    for bar in sorted(bars, key=lambda one: (one.begin_us, -one.end_us)):
        for ends in open_ends:
            while ends and ends[-1] <= bar.begin_us:
                ends.pop()
        free = (lane for lane, ends in enumerate(open_ends) if not ends or bar.end_us <= ends[-1])
        bar.lane = next(free, len(open_ends))
        if bar.lane == len(open_ends):
            open_ends.append([])
        open_ends[bar.lane].append(bar.end_us)
    return len(open_ends)
