"""Questions to all processes: the head passes each on to its host's agent, which asks all hosts, and to programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.request_checks import problem_of_question
from monarch_hpc.agent.head.runs import RunPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.agent.questions import MAX_WAIT_S, PART_OF_WAIT, OpenQuestions
from monarch_hpc.wire.casts import spans_of
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.questions import Ask, AskHosts, Rows
from monarch_hpc.wire.control.refusal import Refused, refuse

__all__ = ["HeadQuestions"]


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
        self._open: OpenQuestions[Link] = OpenQuestions(later, max_answer_bytes)

    def ask(self, requester: Link, question: Ask) -> None:
        """Ask all hosts and programs, or refuse the question."""
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
            lambda answer: requester.send(answer.rows(question.ticket)),
        )
        table, where, timeout_s = question.table, question.where, min(question.timeout_s, MAX_WAIT_S)
        pieces = question.pieces
        for link in programs:
            link.send(Ask(ticket, table, where, timeout_s, pieces=pieces))
        if root is not None:
            hosts = [list(span) for span in spans_of(on_tree)]
            num_hosts = self._state.roster.num_hosts
            on_hosts = AskHosts(ticket, table, where, timeout_s * PART_OF_WAIT, 0, num_hosts, hosts, pieces=pieces)
            self._peers.links[root].send(on_hosts)

    def take(self, link: Link, message: Message) -> None:
        """Handle a peer's answer, or its refusal."""
        match message:
            case Rows():
                self._open.take(link, message)
            case Refused(request=AskHosts.__name__):
                self._open.give_up(link, message.number)

    def lose(self, link: Link) -> None:
        """Handle a lost peer."""
        self._open.lose(link)
