"""Questions to all processes: the head passes each on to its host's agent, which asks all hosts, and to programs.

Its host's agent also has the engine that plans questions in SQL, and runs their last text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from monarch_hpc.agent.head.last_text import given_results, whole_parts, with_answer
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.request_checks import problem_of_question
from monarch_hpc.agent.head.runs.runs import RunPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.agent.questions import MAX_IN_FLIGHT, MAX_WAIT_S, PART_OF_WAIT, OpenQuestions
from monarch_hpc.wire.casts import spans_of
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Ask, AskHosts, AskSql, Rows, SqlAnswer
from monarch_hpc.wire.control.refusal import Refused, refuse

__all__ = ["HeadQuestions"]

_MAX_SOLVE_S = 3600.0
"""Upper bound on the time that an engine works on one question; a larger request is clamped."""

_GRACE_S = 3.0
"""Beyond that, how long the agent may take to say that it was not enough: its helper and engine have earlier limits."""

_LATE = "the agent of the head's host does not answer"


class HeadQuestions:
    """The questions in flight at the head.

    Args:
        run_peers: run -> its members.
        later: runs a callback after a delay in seconds.
        max_answer_bytes: config key `telemetry.max_answer_bytes`.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        run_peers: Mapping[str, RunPeers],
        later: Callable[[float, Callable[[], None]], object],
        max_answer_bytes: int,
    ) -> None:
        self._state = state
        self._peers = peers
        self._run_peers = run_peers
        self._later = later
        self._max_answer_bytes = max_answer_bytes
        self._open: OpenQuestions[Link] = OpenQuestions(later, max_answer_bytes)
        self._solving: dict[int, tuple[Link, Callable[[SqlAnswer], None]]] = {}
        self._tickets = itertools.count(1)

    def ask(self, requester: Link, question: Ask | AskSql) -> None:
        """Ask all hosts and programs, or the engine of this host; or refuse the question."""
        if isinstance(question, AskSql):
            ticket = question.ticket
            self._solve(requester, question, lambda answer: requester.send(replace(answer, ticket=ticket)))
            return
        problem = problem_of_question(question) or self._open.problem
        if problem:
            requester.send(refuse(question, problem))
            return
        asked: dict[Link, list[str]] = {}
        for name, run in self._state.runs.items():
            for link in filter(self._run_peers[name].must_be_asked, self._peers.of(run.members)):
                asked[link] = [f"the program of run {name}"]
        programs = list(asked)
        # On a host with a problem no proc can be.
        slots = {slot.entry.rank: slot for slot in self._state.roster.all() if not slot.problem}
        root = slots[self._state.rank].peer if self._state.rank in slots else None
        on_tree = [rank for rank, slot in slots.items() if root is not None and slot.peer is not None]
        if root is not None:
            asked[self._peers.links[root]] = [f"host {slots[rank].entry.name}" for rank in on_tree]
        ticket = self._open.begin(
            requester,
            question.timeout_s,
            # The records of observed programs are among those that their host's engine reads.
            [] if question.pieces else [one for peers in self._run_peers.values() for one in peers.observed(question)],
            [f"host {slot.entry.name}" for rank, slot in slots.items() if rank not in on_tree],
            asked,
            lambda answer: self._answered(requester, question, answer.rows(question.ticket)),
        )
        table, where, timeout_s = question.table, question.where, min(question.timeout_s, MAX_WAIT_S)
        pieces, parts = question.pieces, question.parts
        for link in programs:
            link.send(Ask(ticket, table, where, timeout_s, pieces=pieces, parts=parts))
        if root is not None:
            hosts = [list(span) for span in spans_of(on_tree)]
            num_hosts = self._state.roster.num_hosts
            limits = timeout_s * PART_OF_WAIT, 0, num_hosts
            self._peers.links[root].send(AskHosts(ticket, table, where, *limits, hosts, pieces=pieces, parts=parts))

    def take(self, link: Link, message: Message) -> None:
        """Handle a peer's answer, or its refusal."""
        match message:
            case Rows():
                self._open.take(link, message)
            case SqlAnswer():
                self._solved(message)
            case Refused(request=AskHosts.__name__):
                self._open.give_up(link, message.number)

    def lose(self, link: Link) -> None:
        """Handle a lost peer."""
        self._open.lose(link)
        for ticket, (requester, _) in list(self._solving.items()):
            if requester is link:
                del self._solving[ticket]

    def _answered(self, requester: Link, question: Ask, rows: Rows) -> None:
        """Pass an answer on, with that of the last text if all hosts have answered."""
        parts = whole_parts(rows) if question.last else []
        if not parts:
            requester.send(rows)
            return
        (last,) = question.last
        names = {slot.entry.rank: slot.entry.name for slot in self._state.roster.all()}

        def solved(answer: SqlAnswer) -> None:
            if answer.absent:
                requester.send(rows)
            else:
                requester.send(with_answer(rows, parts, answer))

        given = given_results(last.given, parts, names)
        solvable = AskSql(0, last.sql, given, last.form, question.timeout_s, self._max_answer_bytes)
        self._solve(requester, solvable, solved)

    def _solve(self, requester: Link, question: AskSql, reply: Callable[[SqlAnswer], None]) -> None:
        slots = {slot.entry.rank: slot for slot in self._state.roster.all()}
        root = slots[self._state.rank].peer if self._state.rank in slots else None
        if root is None or len(self._solving) >= MAX_IN_FLIGHT:
            problem = "is gone" if root is None else f"answers {MAX_IN_FLIGHT} queries already"
            reply(SqlAnswer(question.ticket, absent=f"the agent of the head's host {problem}"))
            return
        ticket, timeout_s = next(self._tickets), min(max(question.timeout_s, 0.0), _MAX_SOLVE_S)
        self._solving[ticket] = requester, reply
        max_bytes = min(question.max_bytes, self._max_answer_bytes)
        self._later(timeout_s + _GRACE_S, partial(self._solved, SqlAnswer(ticket, absent=_LATE)))
        own = replace(question, ticket=ticket, timeout_s=timeout_s, max_bytes=max_bytes)
        self._peers.links[root].send(own)

    def _solved(self, answer: SqlAnswer) -> None:
        _, reply = self._solving.pop(answer.ticket, (None, None))
        if reply is not None:
            reply(answer)
