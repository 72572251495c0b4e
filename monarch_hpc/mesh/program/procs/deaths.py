"""Causes of the deaths of a program's procs; a call that lost its proc waits a moment for the agent's report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from monarch_hpc.actor.messages.causes import OnCause, report_unknown
from monarch_hpc.actor.runtime.death_causes import error_of
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.errors import ProcDied, TransportError
from monarch_hpc.core.recent import Recent

__all__ = ["Deaths", "ProgramCauses"]

_KEEP = 4096
"""Deaths that are remembered, a few hundred bytes each. Callers ask within seconds; later the answer is that the cause
is not known."""


class Deaths:
    """Causes of death by incarnation. For the driver only.

    Args:
        later: schedules a callback after a number of seconds.
        wait_s: config key `procs.cause_s`.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object], wait_s: float) -> None:
        self._later = later
        self._wait_s = wait_s
        self._known: Recent[int, Death] = Recent(_KEEP)
        self._unexplained: dict[int, list[tuple[str, OnCause]]] = {}
        self._handled: Recent[int, bool] = Recent(_KEEP)

    def explain(self, incarnation: int, where: str, on_cause: OnCause, give_up: Callable[[str, OnCause], None]) -> None:
        """Report why the callee at *where* died, at once or when that is known; call *give_up* if it stays unknown."""
        known = self._known.get(incarnation)
        if known is not None:
            on_cause(error_of(where, known))
            return
        self._unexplained.setdefault(incarnation, []).append((where, on_cause))

        def too_late() -> None:
            for waiting in self._unexplained.pop(incarnation, ()):
                give_up(*waiting)

        self._later(self._wait_s, too_late)

    def record(self, incarnation: int, death: Death, *, handled: bool = False) -> None:
        """Record the death of a proc; the first one counts.

        Args:
            incarnation: the proc.
            death: how it has ended.
            handled: whether a restart policy takes care of it, and of its actors: then no owner has to.
        """
        if handled:
            self._handled[incarnation] = True
        known = self._known.setdefault(incarnation, death)
        for where, on_cause in self._unexplained.pop(incarnation, ()):
            on_cause(error_of(where, known))

    def revise(self, incarnation: int, cause: str) -> Death:
        """Let later calls fail with another cause, as new starts of the proc have failed; return the death."""
        known = self._known.setdefault(incarnation, Death(DeathKind.UNKNOWN, cause))
        death = self._known[incarnation] = replace(known, cause=cause)
        return death

    def was_handled(self, incarnation: int) -> bool:
        """Whether a restart policy takes care of a dead proc and its actors."""
        return incarnation in self._handled

    def was_expected(self, incarnation: int) -> bool:
        """Whether a proc ended because it was asked to."""
        known = self._known.get(incarnation)
        return known is not None and known.expected


class ProgramCauses:
    """The causes that the agents have reported, for the program's own calls; see `actor.messages.causes.Causes`.

    Args:
        ending: whether the program is ending, and its procs with it.
        asked: whether a proc was asked to end, which may take it longer than calls wait for the report of its end.
    """

    def __init__(self, deaths: Deaths, ending: Callable[[], bool], asked: Callable[[int], bool]) -> None:
        self._deaths = deaths
        self._ending = ending
        self._asked = asked

    def explain(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        """See `Causes.explain`; waits a moment for the agent's report on how the proc ended."""
        self._deaths.explain(
            incarnation, where, on_cause, lambda where, on_cause: report_unknown(where, error, on_cause)
        )

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: OnCause) -> None:
        """See `Causes.report_death`; the agent's report has more detail than *cause*."""
        self._deaths.explain(incarnation, where, on_cause, lambda where, on_cause: on_cause(ProcDied(where, cause)))

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """Whether a proc ended because it was asked to, or with the program; or a restart policy mends it."""
        deaths = self._deaths
        expected = self._ending() or deaths.was_expected(incarnation) or self._asked(incarnation)
        return expected or deaths.was_handled(incarnation)
