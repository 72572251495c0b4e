"""Surveys: the head asks all agents and programs for their calls, and replies when all have answered or on timeout."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from monarch_hpc.agent.head.link import Link
from monarch_hpc.wire.control.calls import Calls, CallsReport, ProcCalls
from monarch_hpc.wire.control.refusal import Refused, refuse

__all__ = ["Surveys"]

MAX_WAIT_S = 30.0
"""Upper bound on a survey's timeout; a larger request is clamped."""

_MAX_IN_FLIGHT = 64
"""Limit on surveys in flight, each of which holds the answers of all hosts: more than the users of one allocation."""


@dataclass(slots=True, eq=False)
class _Survey:
    requester: Link
    procs: list[ProcCalls]
    waiting: dict[Link, str]
    missing: list[str]


class Surveys:
    """The surveys in flight.

    Args:
        later: runs a callback after a delay in seconds.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._surveys: dict[int, _Survey] = {}
        self._tickets = itertools.count(1)

    def begin(
        self,
        requester: Link,
        question: Calls,
        asked: Mapping[Link, str],
        known: Iterable[ProcCalls],
        missing: list[str],
    ) -> None:
        """Send *question* to all of *asked*, or refuse it if too many surveys are in flight.

        Args:
            asked: links to ask, with their names in reports.
            known: calls already known; read only if the survey is not refused.
            missing: peers that cannot be asked, by name.
        """
        if len(self._surveys) >= _MAX_IN_FLIGHT:
            requester.send(
                refuse(question, f"{_MAX_IN_FLIGHT} surveys are in flight already; retry when they have been answered")
            )
            return
        ticket = next(self._tickets)
        survey = self._surveys[ticket] = _Survey(requester, list(known), dict(asked), missing)
        self._later(min(max(question.timeout_s, 0.0), MAX_WAIT_S), partial(self._finish, ticket))
        for link in asked:
            link.send(Calls(ticket, question.timeout_s))
        self._finish_if_complete(ticket, survey)

    def take(self, link: Link, report: CallsReport) -> None:
        """Add the report of one of the peers asked."""
        survey = self._surveys.get(report.ticket)
        if survey is not None and link in survey.waiting:
            del survey.waiting[link]
            survey.procs.extend(report.procs)
            survey.missing.extend(report.missing)
            self._finish_if_complete(report.ticket, survey)

    def refuse(self, link: Link, refused: Refused) -> None:
        """Record that one of the peers asked cannot answer."""
        survey = self._surveys.get(refused.number) if refused.request == Calls.__name__ else None
        if survey is not None and link in survey.waiting:
            survey.missing.append(survey.waiting.pop(link))
            self._finish_if_complete(refused.number, survey)

    def lose(self, link: Link) -> None:
        """Handle a lost peer: cancel its own surveys, and wait for it no longer in others."""
        for ticket, survey in list(self._surveys.items()):
            if survey.requester is link:
                del self._surveys[ticket]
            elif link in survey.waiting:
                survey.missing.append(survey.waiting.pop(link))
                self._finish_if_complete(ticket, survey)

    def _finish_if_complete(self, ticket: int, survey: _Survey) -> None:
        if not survey.waiting:
            self._finish(ticket)

    def _finish(self, ticket: int) -> None:
        survey = self._surveys.pop(ticket, None)
        if survey is not None:
            survey.requester.send(CallsReport(0, survey.procs, [*survey.missing, *survey.waiting.values()]))
