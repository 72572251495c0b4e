"""Questions to all processes of an allocation, and their answers: rows of a table, see `wire.tables`; and in SQL."""

from __future__ import annotations

from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.message import Message

__all__ = ["Ask", "AskHosts", "AskSql", "LastText", "Portion", "Rows", "SqlAnswer"]


@dataclass(frozen=True, slots=True)
class LastText:
    """The last text of a question in SQL, which the head has run if all hosts have answered.

    Args:
        sql: the question.
        given: what its engine is given beside the results of hosts, see `telemetry.sql.given.GivenRows`.
        form: format of the answer, see `AskSql`.
    """

    sql: str
    given: str
    form: str


@dataclass(frozen=True, slots=True)
class Ask(Message):
    """Tool to head, and head to programs: report your rows of a table.

    Args:
        ticket: the asking process's number of the question, for the answer; 0 from a tool.
        where: values by column: other rows are not wanted.
        timeout_s: how long the asking process waits; whatever is missing then is named in its answer.
        pieces: a question in SQL that hosts answer, see `wire.tables.pieces.HostQuestion`; empty for rows of the table.
        parts: those parts of rows that are wanted, if they have parts, see `wire.tables.calls`; empty for all.
        last: from a tool, one text or none.
    """

    ticket: int
    table: str
    where: dict[str, object]
    timeout_s: float
    pieces: str = field(default="", kw_only=True)
    parts: list[str] = field(default_factory=list, kw_only=True)
    last: list[LastText] = field(default_factory=list, kw_only=True)


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
        finished: the answer to the last text, see `SqlAnswer`: then the portions are without results. Empty if it was
            not run.
        problem: why it cannot be answered.
    """

    ticket: int
    portions: list[Portion]
    missing: list[str]
    left_out: list[str]
    finished: str = field(default="", kw_only=True)
    problem: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class AskSql(Message):
    """Tool to head, to its host's agent, to the helper, and to the engine: plan a question, or answer it.

    Args:
        ticket: the asking process's number of the question, for the answer; 0 from a tool.
        given: what hosts have sent for it, see `telemetry.sql.given.GivenRows`; empty to plan it.
        form: format of the answer: ``json``, ``arrow`` or ``parquet``.
        timeout_s: how long the asking process waits.
        max_bytes: limit on the size of the answer; the head applies its own.
    """

    ticket: int
    sql: str
    given: str
    form: str
    timeout_s: float
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SqlAnswer(Message):
    """Engine to helper, and so on to the tool: the plan or the answer; exactly one of the texts is filled.

    Args:
        body: see `telemetry.sql.given.TakenQuestion` and `FinishedAnswer`.
        problem: why the question cannot be answered.
        absent: why there is no engine that could try.
    """

    ticket: int
    body: str = field(default="", kw_only=True)
    problem: str = field(default="", kw_only=True)
    absent: str = field(default="", kw_only=True)
