"""The procs of one mesh that have ended on this host, for casts that were meant for them."""

from __future__ import annotations

from collections.abc import Iterator

from monarch_hpc.wire.casts import Target

__all__ = ["EndedLives"]

_KEEP = 4
"""Lives of a rank whose causes of death are remembered. Casts for earlier ones come from senders that have missed as
many replacements, and are answered without a cause."""

_EARLIER = "it died, and was replaced"


class EndedLives:
    """Causes of death by rank and life; a life is counted by the earlier procs of its rank."""

    def __init__(self) -> None:
        self._causes: dict[int, dict[int, str]] = {}
        self._first_known: dict[int, int] = {}  # by rank with forgotten lives, the first one that is remembered

    def add(self, rank: int, restarts: int, cause: str) -> None:
        """Add the proc of *rank* that came after *restarts* others."""
        causes = self._causes.setdefault(rank, {})
        causes[restarts] = cause
        if len(causes) > _KEEP:
            del causes[min(causes)]
            self._first_known[rank] = min(causes)

    def causes(self, target: Target) -> Iterator[tuple[int, str]]:
        """Place and cause of each proc that *target* names and that has ended here."""
        for rank, causes in self._causes.items():
            at = target.place_of(rank)
            if at is None:
                continue
            life = target.lives.get(rank, 0)
            if life in causes:
                yield at, causes[life]
            elif life < self._first_known.get(rank, 0):
                yield at, _EARLIER
