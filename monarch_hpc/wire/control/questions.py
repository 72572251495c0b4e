"""Questions to all processes of an allocation, and their answers: rows of a table, see `wire.tables`."""

from __future__ import annotations

from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["Ask", "AskHosts", "Portion", "Rows"]


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """Tool to head, and head to programs: report your rows of a table.

    Args:
        ticket: the asking process's number of the question, for the answer; 0 from a tool.
        where: values by column: other rows are not wanted.
        timeout_s: how long the asking process waits; whatever is missing then is named in its answer.
        pieces: a question in SQL that hosts answer, see `wire.tables.pieces.HostQuestion`; empty for rows of the table.
    """

    ticket: int
    table: str
    where: dict[str, object]
    timeout_s: float
    pieces: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class AskHosts(Ask):
    """Head to agent, and agent to agent: ask *hosts*, whose place in the tree is from *low* to *high*.

    The tree is that of casts which enter at the head, see `agent.casts.tree`.

    Args:
        hosts: ranges of ranks, each with its first rank and the rank after its last.
    """

    low: int
    high: int
    hosts: list[list[int]]


@dataclass(frozen=True, slots=True)
class Portion:
    """The rows of one process.

    Args:
        source: the answering process, in words: ``host n1``.
        rows: its rows as text, see `wire.tables.schema.Table.render`; or for SQL, a `wire.tables.pieces.AnswerPart`.
        cut: whether only the latest of its rows are there, because all of them did not fit.
    """

    source: str
    rows: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Rows(Message):
    """Answer to `Ask`: from all processes that were asked, each named once in one of the three lists.

    Args:
        missing: processes without an answer, in words.
        left_out: processes whose rows would make the answer larger than `telemetry.max_answer_bytes`.
    """

    ticket: int
    portions: list[Portion]
    missing: list[str]
    left_out: list[str]
