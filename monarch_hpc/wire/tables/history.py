"""Tables of what processes have recorded, one row for each record, and of the state of their recorders."""

from __future__ import annotations

from typing import Annotated

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.tables.procs import RunProcess
from monarch_hpc.wire.tables.schema import Table

__all__ = [
    "HANDLED",
    "METRICS",
    "RECORDERS",
    "SENDS",
    "SPANS",
    "TRANSFERS",
    "HandledCall",
    "HistoryRow",
    "MetricRow",
    "RecorderState",
    "SendRow",
    "SpanRow",
    "TransferRow",
]


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """One record of one process: the first columns of each table of these."""

    run: Annotated[str, "its run"]
    mesh: Annotated[int, "number of its process's mesh; -1 for a program"]
    rank: Annotated[int, "rank of its process in that mesh; 0 for a program"]
    host: Annotated[str, "name of its host"]
    pid: Annotated[int, "id of its process"]
    t: Annotated[float, "when it began, in seconds of Unix time by the clock of the head's host"]
    error_us: Annotated[float, "upper bound on the error of `t`, in microseconds; -1 if that clock was not asked"]
    record: Annotated[int, "number of the record in its process; below 0 for a call that runs"]


@dataclass(frozen=True, slots=True)
class HandledCall(HistoryRow):
    """One call that an actor has handled, or handles."""

    actor: Annotated[str, "name of the actor's mesh"]
    actor_rank: Annotated[int, "its rank in that mesh; -1 if it is no longer known"]
    incarnation: Annotated[str, "that of this process, hexadecimal"]
    actor_id: Annotated[str, "number of the actor in this process, hexadecimal; `0` if it is no longer known"]
    endpoint: Annotated[str, "method that was called"]
    caller: Annotated[str, "incarnation of the calling process, hexadecimal"]
    caller_host: Annotated[str, "its host"]
    call: Annotated[int, "number of the call at its caller; 0 if no answer was wanted"]
    through_tree: Annotated[bool, "whether it came through the tree of agents; such calls are numbered apart"]
    bytes: Annotated[int, "size of the arguments with their buffers"]
    answer_bytes: Annotated[int, "size of the result with its buffers; 0 without one"]
    queued_us: Annotated[int, "time that it had waited in this process, in microseconds"]
    ran_us: Annotated[float, "time that it ran, or has run so far, in microseconds"]
    status: Annotated[str, "`ok`, `failed`, or `running`"]
    error: Annotated[str, "class of the exception that it raised; else empty"]
    line: Annotated[str, "file and line that raised it; else empty"]


@dataclass(frozen=True, slots=True)
class SendRow(HistoryRow):
    """One call that a process has sent."""

    actor: Annotated[str, "name of the mesh of the calling actor; empty for code outside of actors"]
    actor_rank: Annotated[int, "rank of that actor; -1 without one"]
    incarnation: Annotated[str, "that of this process, hexadecimal"]
    actor_id: Annotated[str, "number of the calling actor in this process, hexadecimal; `0` without one"]
    endpoint: Annotated[str, "method that is called"]
    target: Annotated[str, "incarnation of the called process, hexadecimal; empty for a call through the tree"]
    target_host: Annotated[str, "its host"]
    target_actor: Annotated[str, "name of the called actor's mesh"]
    target_id: Annotated[str, "number of the called actor in its process, hexadecimal"]
    call: Annotated[int, "number of the call; 0 if no answer is wanted"]
    through_tree: Annotated[bool, "whether it goes through the tree of agents; such calls are numbered apart"]
    num_receivers: Annotated[int, "number of actors that it is sent to"]
    bytes: Annotated[int, "size of the arguments with their buffers"]
    took_us: Annotated[float, "time to its answer, or so far, in microseconds; 0 if no answer is wanted"]
    awaited: Annotated[bool, "whether a thread or a task waits for the answer at the moment"]
    status: Annotated[str, "`ok`, `failed`, `open` before the answer, or `sent` if none is wanted"]


@dataclass(frozen=True, slots=True)
class MetricRow(HistoryRow):
    """One value that a program has logged."""

    actor: Annotated[str, "name of the mesh of the actor that logged it; empty for code outside of actors"]
    actor_rank: Annotated[int, "rank of that actor; -1 without one"]
    name: Annotated[str, "name of the metric"]
    value: Annotated[float, "its value"]
    step: Annotated[int, "its step; -1 if it has none"]
    tags: Annotated[str, "its tags, as JSON; empty without any"]


@dataclass(frozen=True, slots=True)
class SpanRow(HistoryRow):
    """One span of a program."""

    actor: Annotated[str, "name of the mesh of the actor that it ran in; empty for code outside of actors"]
    actor_rank: Annotated[int, "rank of that actor; -1 without one"]
    name: Annotated[str, "name of the span"]
    span: Annotated[int, "its number in its process"]
    parent: Annotated[int, "number of the span around it; 0 without one"]
    thread: Annotated[int, "id of its thread"]
    took_us: Annotated[float, "its duration, or that so far, in microseconds"]
    status: Annotated[str, "`ok`, `failed` with an exception, or `open`"]
    tags: Annotated[str, "its tags, as JSON; empty without any"]


@dataclass(frozen=True, slots=True)
class TransferRow(HistoryRow):
    """One transfer between memory of two processes, at the one that began it."""

    peer: Annotated[str, "incarnation of the other process, hexadecimal"]
    peer_host: Annotated[str, "its host"]
    path: Annotated[str, "way that it took, see `rdma.RDMABuffer.path`"]
    write: Annotated[bool, "whether it wrote to the other process"]
    bytes: Annotated[int, "its size"]
    took_us: Annotated[float, "its duration, in microseconds"]
    status: Annotated[str, "`ok` or `failed`"]


@dataclass(frozen=True, slots=True)
class RecorderState(RunProcess):
    """The recorder of one process: records written, and how many of them later ones have overwritten."""

    incarnation: Annotated[str, "that of the process, hexadecimal"]
    problem: Annotated[str, "why its records cannot be read; empty if they can"]
    events: Annotated[int, "events written: handled calls, unanswered sends and changes of state"]
    events_lost: Annotated[int, "how many of them were overwritten"]
    metrics: Annotated[int, "metrics written"]
    metrics_lost: Annotated[int, "how many of them were overwritten"]
    spans: Annotated[int, "spans written"]
    spans_lost: Annotated[int, "how many of them were overwritten"]
    transfers: Annotated[int, "transfers written"]
    transfers_lost: Annotated[int, "how many of them were overwritten"]
    unnamed: Annotated[int, "names for which its table had no room, so that records lack them"]


HANDLED = Table("handled", HandledCall, "Calls that actors of runs have handled, or handle.", history=True)
SENDS = Table("sends", SendRow, "Calls that processes of runs have sent.", history=True)
METRICS = Table(
    "metrics", MetricRow, "Values that programs have logged with `log_metric` and meters.", history=True, odd=("value",)
)
SPANS = Table("spans", SpanRow, "Spans that programs have recorded.", history=True)
TRANSFERS = Table("transfers", TransferRow, "Transfers between memory of processes of runs.", history=True)
RECORDERS = Table("recorders", RecorderState, "The recorders of processes of runs.")
