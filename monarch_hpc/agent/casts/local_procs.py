"""The procs of this host, living and dead, by the meshes that casts name."""

from __future__ import annotations

from collections.abc import Iterator

from monarch_hpc.agent.casts.ended_lives import EndedLives
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.recent import Recent
from monarch_hpc.wire.casts import Target

__all__ = ["LocalProcs"]

_MAX_REMEMBERED = 4096
"""Number of meshes whose dead procs are remembered. For older ones, a caller gets the error that no answer came."""

_ANY_RUN = ""

_Place = tuple[str, int]  # run and mesh; a kept mesh serves all runs


@dataclass(frozen=True, slots=True)
class _Life:
    """A proc of this host, and the number of earlier procs of its rank."""

    incarnation: int
    restarts: int


class LocalProcs:
    """The procs that casts on this host may be for. All methods must be called on the engine's driver."""

    def __init__(self) -> None:
        self._living: dict[_Place, dict[int, _Life]] = {}
        self._ended: Recent[_Place, EndedLives] = Recent(_MAX_REMEMBERED)
        self._kept: set[int] = set()

    def add(self, run: str, mesh: int, rank: int, incarnation: int, restarts: int) -> None:
        """Add a proc that is ready; *restarts* is the number of earlier procs of its rank."""
        self._living.setdefault(self._place(run, mesh), {})[rank] = _Life(incarnation, restarts)

    def end(self, run: str, mesh: int, rank: int, cause: str) -> int | None:
        """Note the end of a proc; return its incarnation if it was ready."""
        place = self._place(run, mesh)
        live = self._living.get(place, {})
        life = live.pop(rank, None)
        if not live:
            self._living.pop(place, None)
        self._ended.setdefault(place, EndedLives()).add(rank, 0 if life is None else life.restarts, cause)
        return None if life is None else life.incarnation

    def keep(self, run: str, mesh: int) -> None:
        """Let casts of all runs find a mesh, also after its own run has ended."""
        if mesh not in self._kept:
            living, ended = self._living.pop((run, mesh), {}), self._ended.pop((run, mesh))
            self._kept.add(mesh)
            self._living[_ANY_RUN, mesh] = living
            if ended is not None:
                self._ended[_ANY_RUN, mesh] = ended

    def forget_run(self, run: str) -> None:
        """Forget a run, whose procs have ended."""
        for place in [place for place in self._living if place[0] == run]:
            del self._living[place]
        for place in [place for place in self._ended if place[0] == run]:
            self._ended.forget(place)

    def living(self, target: Target) -> list[tuple[int, int]]:
        """Incarnation and place of the procs here that *target* names."""
        live = self._living.get(self._place(target.run, target.mesh), {})
        places = [(life, target.place_of(rank), target.lives.get(rank, 0)) for rank, life in live.items()]
        return [(life.incarnation, at) for life, at, number in places if at is not None and life.restarts == number]

    def causes(self, target: Target) -> Iterator[tuple[int, str]]:
        """Place and cause of each proc that *target* names and that has ended here."""
        ended = self._ended.get(self._place(target.run, target.mesh))
        return iter(()) if ended is None else ended.causes(target)

    def _place(self, run: str, mesh: int) -> _Place:
        return (_ANY_RUN if mesh in self._kept else run), mesh
