"""The engines that answer questions in SQL: that of a head's host, or one in a child of this process."""

from __future__ import annotations

import contextlib
import itertools
import select
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.attach.tables.kept_questions import KeptQuestions
from monarch_hpc.core.clock import Deadline
from monarch_hpc.core.errors import QueryError
from monarch_hpc.telemetry.sql.given import FinishedAnswer, GivenRows, TakenQuestion, parse, render
from monarch_hpc.telemetry.sql.plan import QueryPlan
from monarch_hpc.wire.control.questions import AskSql, SqlAnswer

if TYPE_CHECKING:
    import subprocess

    from monarch_hpc.telemetry.scribe.framing import MessageSocket

__all__ = ["SqlEngine", "open_engine"]

_GRACE_S = 4.0
"""Beyond the time of a query, how long the answer of a head's engine may be on its way; agents have earlier limits."""

_OWN_GRACE_S = 2.0
"""Likewise of an engine in a child, which ends late questions itself."""

_MAX_OWN_BYTES = 256 << 20
"""Limit on the answer of an engine in a child; those of a head's have `telemetry.max_answer_bytes`."""


class _Engine(Protocol):
    def ask(self, question: AskSql, patience_s: float) -> SqlAnswer:
        """Ask it; an answer that says why there is none if it cannot be asked."""
        ...


class _HeadEngine:
    """The engine of the head's host, through its agent and helper."""

    def __init__(self, head: HeadClient) -> None:
        self._head = head

    def ask(self, question: AskSql, patience_s: float) -> SqlAnswer:
        answer = self._head.ask(question, SqlAnswer, patience_s + _GRACE_S)
        return answer if isinstance(answer, SqlAnswer) else SqlAnswer(0, absent="the head does not answer")


class _OwnEngine:
    """An engine in a child of this process, which the first question starts, and which ends with `close`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._messages: MessageSocket | None = None
        self._tickets = itertools.count(1)

    def ask(self, question: AskSql, patience_s: float) -> SqlAnswer:
        deadline = Deadline(patience_s + _OWN_GRACE_S)
        if self._messages is None:
            from monarch_hpc.telemetry.sql.engine import launch_engine  # late: most questions are for a head's engine

            try:
                self._process, self._messages = launch_engine()
            except OSError as error:
                return SqlAnswer(0, absent=f"the engine of queries cannot be started: {error}")
        messages = self._messages
        ticket = next(self._tickets)
        messages.send(replace(question, ticket=ticket))
        while not (messages.ended or deadline.passed()):
            select.select([messages], [messages] if messages.num_waiting else [], [], deadline.left_s())
            messages.flush()
            for message in messages.receive():
                if isinstance(message, SqlAnswer) and message.ticket == ticket:
                    return message
        why = "has ended" if messages.ended else "does not answer"
        return SqlAnswer(0, absent=f"the engine of queries {why}")

    def close(self) -> None:
        """End it."""
        if self._messages is not None:
            self._messages.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class SqlEngine:
    """An engine that has taken a question.

    Args:
        engines: those that can be asked, the best first.
        timeout_s: how long they may take for that, their start included.
        kept: what is known of earlier questions.

    Attributes:
        sql: the question.
        taken: the question as it has checked it.
    """

    def __init__(
        self, engines: Sequence[_Engine], sql: str, timeout_s: float, kept: KeptQuestions | None = None
    ) -> None:
        self._engines = [*engines]
        self.sql = sql
        known = None if kept is None else kept.plan(sql)
        if known is None:
            body = self._ask(AskSql(0, sql, "", "json", timeout_s, _MAX_OWN_BYTES))
            known = parse(TakenQuestion, body)
            if kept is not None:
                kept.keep_plan(sql, known)
        self.taken = known

    def plan(self, *, pulled: bool = False) -> QueryPlan:
        """How the question is split over hosts; or how its tables are *pulled*."""
        return self.taken.pulled if pulled else self.taken.split

    def finish(self, given: GivenRows, form: str, timeout_s: float) -> FinishedAnswer:
        """Return the answer to the question, in a form: ``json``, ``arrow`` or ``parquet``.

        Raises:
            QueryError: it takes longer, or too much memory; or no engine is left.
        """
        question = AskSql(0, self.sql, render(given), form, timeout_s, _MAX_OWN_BYTES)
        return parse(FinishedAnswer, self._ask(question))

    def _ask(self, question: AskSql) -> str:
        """Ask the first engine that is there, within the time of the question; the others are asked no more."""
        deadline, left_s = Deadline(question.timeout_s), question.timeout_s
        absent = []
        while self._engines and left_s > 0:
            answer = self._engines[0].ask(replace(question, timeout_s=left_s), left_s)
            if answer.problem:
                raise QueryError(answer.problem)
            if answer.body:
                return answer.body
            absent.append(answer.absent)
            del self._engines[0]
            left_s = deadline.left_s()
        why = "; ".join(dict.fromkeys(absent)) or "there is no engine that could answer the query"
        if deadline.passed():
            why += f" within {question.timeout_s:g} s: ask again, as it may have been starting, or give it more time"
        raise QueryError(why)


@contextlib.contextmanager
def open_engine(
    sql: str, timeout_s: float, heads: Sequence[HeadClient] = (), kept: KeptQuestions | None = None
) -> Iterator[SqlEngine]:
    """Have an engine take a question, which it checks before any host is asked.

    That of the first head's host is asked, if it has one; a child of this process where it has not, and for
    allocations that have ended.

    Raises:
        QueryError: the SQL is wrong, or would change something; or there is no engine, as the extra is not installed,
            or none in time.
    """
    own = _OwnEngine()
    try:
        yield SqlEngine([*(_HeadEngine(head) for head in heads), own], sql, timeout_s, kept)
    finally:
        own.close()
