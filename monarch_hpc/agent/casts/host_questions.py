"""One agent's part in questions to all hosts, which go down the tree of casts; answers are combined on their way back.

A state machine without I/O: messages go out through a carrier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from monarch_hpc.agent.casts.tree import TreeRoutes, branches, contains, narrow
from monarch_hpc.agent.questions import PART_OF_WAIT, OpenQuestions
from monarch_hpc.wire.casts import Spans
from monarch_hpc.wire.control.allocation import HostEntry
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import AskHosts, Portion, Rows
from monarch_hpc.wire.control.refusal import refuse
from monarch_hpc.wire.tables.answer import Answer
from monarch_hpc.wire.tables.pieces import parse_part

__all__ = ["HostAnswers", "HostQuestions", "QuestionCarrier"]

_ROOT = 0
"""The host where questions enter the tree: that of the head."""


class QuestionCarrier(Protocol):
    """Sends questions to other agents. Its methods never block or fail: losses are reported later."""

    def ask_host(self, rank: int, question: AskHosts) -> None:
        """Send *question* to the agent of a host."""
        ...

    def later(self, delay_s: float, callback: Callable[[], None]) -> object:
        """Run *callback* after *delay_s* seconds."""
        ...


class HostAnswers(Protocol):
    """Answers questions for this host. Its methods never block: what they find is passed on at once or later."""

    def rows(self, question: AskHosts, max_bytes: int, reply: Callable[[Portion | None], None]) -> None:
        """Read this host's rows, up to *max_bytes* of rows of the past; None if they cannot be read."""
        ...

    def merge(
        self, question: AskHosts, portions: Sequence[Portion], max_bytes: int, reply: Callable[[Portion | None], None]
    ) -> None:
        """Combine the parts of an answer to a question in SQL; None if they stay as they are."""
        ...


class HostQuestions:
    """One agent's part in all questions. All methods must be called on the engine's driver.

    Args:
        rank: rank of this host.
        fanout: config key `transport.cast_fanout`.
        usable: whether the agent of a host can be reached, as far as is known.
        records: answers for this host.
        max_answer_bytes: config key `telemetry.max_answer_bytes`.
    """

    def __init__(
        self,
        rank: int,
        num_hosts: int,
        fanout: int,
        usable: Callable[[int], bool],
        carrier: QuestionCarrier,
        records: HostAnswers,
        max_answer_bytes: int,
    ) -> None:
        self._rank = rank
        self._num_hosts = num_hosts
        self._fanout = fanout
        self._routes = TreeRoutes(num_hosts, usable)
        self._carrier = carrier
        self._records = records
        self._max_bytes = max_answer_bytes
        self._open: OpenQuestions[int] = OpenQuestions(carrier.later, max_answer_bytes)
        self._names: dict[int, str] = {}

    def on_roster(self, hosts: Sequence[HostEntry], num_hosts: int) -> None:
        """Learn the names of other hosts, and the number of all, which grows."""
        self._num_hosts = self._routes.num_hosts = max(self._num_hosts, num_hosts)
        self._names.update({host.rank: host.name for host in hosts})

    def on_ask(self, question: AskHosts, reply: Callable[[Message], None]) -> None:
        """Ask the hosts behind this one, and answer by *reply*."""
        problem = self._open.problem or self._problem_of(question)
        if problem:
            reply(refuse(question, problem))
            return
        hosts: Spans = tuple((start, stop) for start, stop in question.hosts)
        routes: dict[int, AskHosts] = {}
        missing: list[str] = []
        for low, high in branches((question.low, question.high), self._rank, self._fanout):
            some = narrow(hosts, (low, high), _ROOT)
            through = self._routes.through(_ROOT, (low, high)) if some else None
            if through is not None:
                spans = [list(span) for span in some]
                routes[through] = replace(
                    question, timeout_s=question.timeout_s * PART_OF_WAIT, low=low, high=high, hosts=spans
                )
            else:
                missing += self._sources(some)
        asked = {rank: self._sources(part.hosts) for rank, part in routes.items()}
        if contains(hosts, self._rank):
            asked[self._rank] = self._sources([(self._rank, self._rank + 1)])
        ticket = self._open.begin(
            reply,
            question.timeout_s,
            [],
            missing,
            asked,
            lambda answer: self._reply(question, answer, reply),
        )
        for rank, part in routes.items():
            self._carrier.ask_host(rank, replace(part, ticket=ticket))
        if self._rank in asked:
            self._records.rows(question, self._max_bytes // self._num_hosts, partial(self._take_own, ticket))

    def _reply(self, question: AskHosts, answer: Answer, reply: Callable[[Message], None]) -> None:
        parts = [portion for portion in answer.portions if question.pieces and parse_part(portion.rows).results]
        if len(parts) < 2:
            reply(answer.rows(question.ticket))
            return

        def merged(portion: Portion | None) -> None:
            if portion is not None:
                answer.portions = [portion, *(one for one in answer.portions if one not in parts)]
            reply(answer.rows(question.ticket))

        self._records.merge(question, parts, self._max_bytes, merged)

    def _take_own(self, ticket: int, portion: Portion | None) -> None:
        if portion is None:
            self._open.give_up(self._rank, ticket)
        else:
            self._open.take(self._rank, Rows(ticket, [portion], [], []))

    def on_rows(self, rank: int, rows: Rows) -> None:
        """Handle the answer of another agent."""
        self._open.take(rank, rows)

    def on_refused(self, rank: int, ticket: int) -> None:
        """Record that another agent cannot answer."""
        self._open.give_up(rank, ticket)

    def on_host_lost(self, rank: int) -> None:
        """Handle the loss of an agent: later questions take another route to the hosts behind it."""
        self._routes.lose(rank)
        self._open.lose(rank)

    def on_host_back(self, rank: int) -> None:
        """Ask a host again that was lost: it has another agent."""
        self._routes.find(rank)

    def on_host_cut(self, rank: int) -> None:
        """Handle a broken channel to an agent."""
        self._open.lose(rank)

    def _problem_of(self, question: AskHosts) -> str:
        if not 0 <= question.low <= self._rank < question.high <= self._num_hosts:
            return f"host {self._rank} is asked for hosts {question.low} to {question.high} of {self._num_hosts}"
        if any(len(span) != 2 or not 0 <= span[0] < span[1] <= self._num_hosts for span in question.hosts):
            return f"ranges of hosts of {self._num_hosts} cannot be {question.hosts!s:.80}"
        return ""

    def _sources(self, spans: Sequence[Sequence[int]]) -> list[str]:
        ranks = [rank for start, stop in spans for rank in range(start, stop)]
        return [f"host {self._names.get(rank, rank)}" for rank in ranks]
