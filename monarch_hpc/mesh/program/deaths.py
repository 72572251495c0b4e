"""What a program knows of the deaths of its procs: who lost one waits a moment for its agent to say why."""

from __future__ import annotations

from collections.abc import Callable

from monarch_hpc.actor.runtime.death_causes import CAUSE_WAIT_S, OnCause
from monarch_hpc.core.errors import ActorDied
from monarch_hpc.core.recent import Recent

__all__ = ["Deaths"]

_KEEP = 4096
"""Deaths that are remembered, a few hundred bytes each: who lost a proc asks within seconds. Later it is told that
nobody knows, which is true by then."""


class Deaths:
    """Causes by incarnation. On the driver only.

    Args:
        later: runs a callback in so many seconds.
    """

    def __init__(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        self._later = later
        self._causes: Recent[int, str] = Recent(_KEEP)
        self._unexplained: dict[int, list[tuple[str, OnCause]]] = {}
        self._stopped: Recent[int, bool] = Recent(_KEEP)

    def explain(self, incarnation: int, where: str, on_cause: OnCause, give_up: Callable[[str, OnCause], None]) -> None:
        """Tell why what was at *where* died, now or when it is known; *give_up* tells if nobody says so in time."""
        cause = self._causes.get(incarnation)
        if cause is not None:
            on_cause(ActorDied(where, cause))
            return
        self._unexplained.setdefault(incarnation, []).append((where, on_cause))

        def too_late() -> None:
            for unheard in self._unexplained.pop(incarnation, ()):
                give_up(*unheard)

        self._later(CAUSE_WAIT_S, too_late)

    def record(self, incarnation: int, cause: str, *, expected: bool = False) -> None:
        """Note a death; the first cause counts.

        Args:
            expected: it was asked to end.
        """
        if expected:
            self._stopped[incarnation] = True
        cause = self._causes.setdefault(incarnation, cause)
        for where, on_cause in self._unexplained.pop(incarnation, ()):
            on_cause(ActorDied(where, cause))

    def was_expected(self, incarnation: int) -> bool:
        """Whether a proc ended because it was asked to."""
        return incarnation in self._stopped
