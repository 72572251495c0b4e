"""Messages between an agent and the helper of its host, see `telemetry.scribe`; rows go back as `Rows`."""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Ask

__all__ = [
    "AskEngine",
    "AskHelper",
    "BeginLeaf",
    "BeginSampling",
    "ClockIs",
    "KeepRecords",
    "MergeParts",
    "ProcOver",
    "ProcRuns",
    "Ship",
    "Shipped",
]


@dataclass(frozen=True, slots=True)
class BeginSampling(Message):
    """Agent to helper, first: the host.

    Args:
        host: its name.
        rank: its rank.
        gpus: numbers or UUIDs of the granted GPUs.
        sample_s: config key `telemetry.sample_s`.
        keep_dead: config key `telemetry.keep_dead`.
        otlp_url: config key `telemetry.otlp_url`.
    """

    host: str
    rank: int
    gpus: list[str]
    sample_s: float
    keep_dead: int
    otlp_url: str


@dataclass(frozen=True, slots=True)
class KeepRecords(Message):
    """Agent to helper: keep what procs record; the descriptor of a file for it comes with the message.

    Args:
        directory: the allocation's.
        rank: rank of the host.
        ship_s: config key `telemetry.ship_s`.
        max_bytes: config key `telemetry.keep_bytes_per_host`.
        max_per_s: config key `telemetry.keep_per_s`.
        compact_s: config key `telemetry.compact_s`.
    """

    directory: str
    rank: int
    ship_s: float
    max_bytes: int
    max_per_s: int
    compact_s: float


@dataclass(frozen=True, slots=True)
class ProcRuns(Message):
    """Agent to helper: a proc has been forked; the descriptor of its records comes with the message."""

    run: str
    mesh: int
    rank: int
    pid: int


@dataclass(frozen=True, slots=True)
class ProcOver(Message):
    """Agent to helper: a proc has ended.

    Args:
        failed: whether nobody had asked for its end.
    """

    run: str
    mesh: int
    rank: int
    pid: int
    cause: str
    failed: bool


@dataclass(frozen=True, slots=True)
class ClockIs(Message):
    """Agent to helper: the correction of this host's clock, see `telemetry.clock.Correction`."""

    offset_ns: int
    error_us: float


@dataclass(frozen=True, slots=True)
class AskHelper(Ask):
    """Agent to helper: report this host's rows of a table.

    Args:
        source: this host, in words.
        max_bytes: limit on the size of the rows.
    """

    source: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class MergeParts(Message):
    """Agent to helper, and helper to engine: combine parts of the answer to a question in SQL; see `Rows`.

    Args:
        source: the hosts of the parts, in words.
        pieces: the question, see `wire.tables.pieces.HostQuestion`.
        parts: see `wire.tables.pieces.AnswerPart`.
        timeout_s: how long the agent waits.
        max_bytes: limit on the size of the result.
    """

    ticket: int
    source: str
    pieces: str
    parts: list[str]
    timeout_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class BeginLeaf(Message):
    """Helper to engine, first: the host.

    Args:
        directory: that in which the host keeps records; empty if it does not.
        keep_dead: config key `telemetry.keep_dead`.
    """

    host: str
    rank: int
    directory: str
    keep_dead: int


@dataclass(frozen=True, slots=True)
class AskEngine(AskHelper):
    """Helper to engine: answer a question in SQL about this host.

    Args:
        rows: those that are not in the memory of procs, as text by table.
        dropped: records that are neither in files nor in memory, if the host keeps records.
        offset_ns, error_us: the correction of its clock, see `telemetry.clock.Correction`.
    """

    rows: dict[str, str]
    dropped: int
    offset_ns: int
    error_us: float


@dataclass(frozen=True, slots=True)
class Ship(Message):
    """Agent to helper: write what is not in files yet, and answer `Shipped`.

    Args:
        with_open: whether that includes calls and spans that have not ended.
    """

    ticket: int
    with_open: bool


@dataclass(frozen=True, slots=True)
class Shipped(Message):
    """Helper to agent: it is done, as far as it can be."""

    ticket: int
