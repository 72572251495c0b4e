"""The engines that answer questions in SQL: that of a head's host, or one in a child of this process."""

from __future__ import annotations

import contextlib
import itertools
import select
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from monarch_hpc.attach.head.client import HeadClient
from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.errors import QueryError
from monarch_hpc.telemetry.scribe.framing import MessageSocket
from monarch_hpc.telemetry.sql.engine import launch_engine
from monarch_hpc.telemetry.sql.given import FinishedAnswer, GivenRows, TakenQuestion, parse, render
from monarch_hpc.telemetry.sql.plan import QueryPlan
from monarch_hpc.wire.control.questions import AskSql, SqlAnswer

__all__ = ["SqlEngine", "open_engine"]

_START_S = 60.0
"""Time that an engine may take to start: half a second on an idle machine, and long where it is loaded from afar."""

_GRACE_S = 12.0
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
        until_s = monotonic() + patience_s + _OWN_GRACE_S
        if self._messages is None:
            try:
                self._process, self._messages = launch_engine()
            except OSError as error:
                return SqlAnswer(0, absent=f"the engine of queries cannot be started: {error}")
            until_s += _START_S
        messages = self._messages
        ticket = next(self._tickets)
        messages.send(replace(question, ticket=ticket))
        while not messages.ended and (left_s := until_s - monotonic()) > 0:
            select.select([messages], [messages] if messages.num_waiting else [], [], left_s)
            messages.flush()
            for message in messages.receive():
                if isinstance(message, SqlAnswer) and message.ticket == ticket:
                    return message
        why = "has ended" if messages.ended else f"does not answer within {patience_s:g} s"
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

    Attributes:
        taken: the question as it has checked it.
    """

    def __init__(self, engines: Sequence[_Engine], sql: str) -> None:
        self._engines = [*engines]
        self._sql = sql
        body = self._ask(AskSql(0, sql, "", "json", _START_S, _MAX_OWN_BYTES), _START_S)
        self.taken = parse(TakenQuestion, body)

    def plan(self, *, pulled: bool = False) -> QueryPlan:
        """How the question is split over hosts; or how its tables are *pulled*."""
        return self.taken.pulled if pulled else self.taken.split

    def finish(self, given: GivenRows, form: str, timeout_s: float) -> FinishedAnswer:
        """Return the answer to the question, in a form: ``json``, ``arrow`` or ``parquet``.

        Raises:
            QueryError: it takes longer, or too much memory; or no engine is left.
        """
        question = AskSql(0, self._sql, render(given), form, timeout_s, _MAX_OWN_BYTES)
        return parse(FinishedAnswer, self._ask(question, timeout_s))

    def _ask(self, question: AskSql, patience_s: float) -> str:
        """Ask the first engine that is there; the others are asked no more."""
        absent = []
        while self._engines:
            answer = self._engines[0].ask(question, patience_s)
            if answer.problem:
                raise QueryError(answer.problem)
            if answer.body:
                return answer.body
            absent.append(answer.absent)
            del self._engines[0]
        raise QueryError("; ".join(dict.fromkeys(absent)) or "there is no engine that could answer the query")


@contextlib.contextmanager
def open_engine(sql: str, heads: Sequence[HeadClient] = ()) -> Iterator[SqlEngine]:
    """Have an engine take a question, which it checks before any host is asked.

    That of the first head's host is asked, if it has one; a child of this process where it has not, and for
    allocations that have ended.

    Raises:
        QueryError: the SQL is wrong, or would change something; or there is no engine, as the extra is not installed.
    """
    own = _OwnEngine()
    try:
        yield SqlEngine([*(_HeadEngine(head) for head in heads), own], sql)
    finally:
        own.close()
