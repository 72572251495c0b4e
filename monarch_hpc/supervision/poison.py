"""Messages that kill the procs which handle them: decides when one is put aside, before the last restart is used up.

Pure: the caller reads the clock, and refuses what is put aside.
"""

from __future__ import annotations

from monarch_hpc.core.dataclass import dataclass

__all__ = ["PoisonWatch"]

Place = tuple[int, int]
"""Mesh and rank of a proc."""


@dataclass(slots=True)
class _Suspect:
    message: bytes
    deaths_s: list[float]


class PoisonWatch:
    """The suspects of one program.

    A message is put aside when it was the only one that a proc handled at the deaths of several lives in a row, within
    a time. A proc that handled several is no witness: any of them may have been innocent each time.

    Args:
        num_lives: how many lives; 0 to put nothing aside.
    """

    def __init__(self, num_lives: int) -> None:
        self._num_lives = num_lives
        self._suspects: dict[Place, _Suspect] = {}
        self._aside: dict[int, set[bytes]] = {}  # by mesh

    def on_death(self, now_s: float, place: Place, message: bytes | None, window_s: float) -> bool:
        """Note the death of a proc; return whether its message is put aside from now on.

        Args:
            now_s: the time, in seconds of any monotonic clock.
            message: the digest of the only message that it handled; None if it handled none, several, or others' ones.
            window_s: seconds within which all these deaths must be.
        """
        known = self._suspects.get(place)
        if message is None or not self._num_lives:
            self._suspects.pop(place, None)
            return False
        if known is None or known.message != message:
            known = self._suspects[place] = _Suspect(message, [])
        known.deaths_s = [then_s for then_s in known.deaths_s if now_s - then_s < window_s] + [now_s]
        if len(known.deaths_s) < self._num_lives:
            return False
        del self._suspects[place]
        self._aside.setdefault(place[0], set()).add(message)
        return True

    def is_aside(self, mesh: int, message: bytes) -> bool:
        """Whether a message to procs of *mesh* is put aside."""
        return message in self._aside.get(mesh, ())

    def forget(self, mesh: int) -> None:
        """Forget what was put aside for a mesh."""
        self._aside.pop(mesh, None)
        for place in [place for place in self._suspects if place[0] == mesh]:
            del self._suspects[place]
