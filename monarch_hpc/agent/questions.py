"""Questions in flight: a process asks its peers, and answers when all of them have answered, or on timeout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.questions import Portion, Rows
from monarch_hpc.wire.tables.answer import Answer

__all__ = ["MAX_IN_FLIGHT", "MAX_WAIT_S", "PART_OF_WAIT", "OpenQuestions"]

MAX_WAIT_S = 30.0
"""Upper bound on a question's timeout; a larger one is clamped."""

MAX_IN_FLIGHT = 16
"""Limit on questions in flight, each of which may hold a full answer: as many as an allocation has users at a time."""

PART_OF_WAIT = 0.8
"""Part of the asking process's timeout that the next process on the tree has: its answer, which names what is missing
behind it, must arrive before the asking one gives it up too. Four levels down, two seconds have become 0.8."""

P = TypeVar("P")
"""A peer, as the asking process identifies it."""


@dataclass(slots=True, eq=False)
class _Question(Generic[P]):
    requester: object
    answer: Answer
    waiting: dict[P, Sequence[str]]
    send: Callable[[Answer], None]


class OpenQuestions(Generic[P]):
    """The questions in flight of one process. It does no I/O: the caller asks the peers.

    Args:
        later: runs a callback after a delay in seconds.
        max_answer_bytes: see `telemetry.max_answer_bytes`.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object], max_answer_bytes: int) -> None:
        self._later = later
        self._max_answer_bytes = max_answer_bytes
        self._questions: dict[int, _Question[P]] = {}
        self._tickets = itertools.count(1)

    @property
    def problem(self) -> str:
        """Why no further question can be asked at the moment; empty if one can."""
        if len(self._questions) < MAX_IN_FLIGHT:
            return ""
        return f"{MAX_IN_FLIGHT} questions are in flight already; retry when they have been answered"

    def begin(
        self,
        requester: object,
        timeout_s: float,
        own: Iterable[Portion],
        missing: Iterable[str],
        asked: Mapping[P, Sequence[str]],
        send: Callable[[Answer], None],
    ) -> int:
        """Begin to wait for the answers of peers; return the ticket with which the caller asks them.

        Args:
            requester: the peer whose loss ends the question, see `lose`.
            own: rows that are known already.
            missing: processes that cannot be asked, in words.
            asked: for each peer, in words, the processes that it answers for.
            send: called with the answer, once; before the return if no peer is asked.
        """
        answer = Answer(self._max_answer_bytes)
        answer.missing += missing
        answer.add(own)
        ticket = next(self._tickets)
        question = self._questions[ticket] = _Question(requester, answer, dict(asked), send)
        self._later(min(max(timeout_s, 0.0), MAX_WAIT_S), partial(self._finish, ticket))
        self._finish_if_complete(ticket, question)
        return ticket

    def take(self, peer: P, rows: Rows) -> None:
        """Add the answer of one of the peers asked; one that comes late, or that was not asked for, is dropped."""
        question = self._questions.get(rows.ticket)
        if question is not None and question.waiting.pop(peer, None) is not None:
            question.answer.combine(rows)
            self._finish_if_complete(rows.ticket, question)

    def give_up(self, peer: P, ticket: int) -> None:
        """Record that one of the peers asked cannot answer."""
        question = self._questions.get(ticket)
        if question is not None and peer in question.waiting:
            question.answer.missing += question.waiting.pop(peer)
            self._finish_if_complete(ticket, question)

    def lose(self, peer: P) -> None:
        """Handle a lost peer: drop its own questions, and wait for it no longer in others."""
        for ticket, question in list(self._questions.items()):
            if question.requester is peer:
                del self._questions[ticket]
            else:
                self.give_up(peer, ticket)

    def _finish_if_complete(self, ticket: int, question: _Question[P]) -> None:
        if not question.waiting:
            self._finish(ticket)

    def _finish(self, ticket: int) -> None:
        question = self._questions.pop(ticket, None)
        if question is not None:
            for sources in question.waiting.values():
                question.answer.missing += sources
            question.send(question.answer)
