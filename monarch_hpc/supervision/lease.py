"""When a silent peer counts as suspect, and when as dead.

TCP never notices a frozen or unplugged peer, so silence itself is the evidence.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["TRANSITIONS", "Lease", "Liveness"]


class Liveness(enum.Enum):
    """What silence tells of a peer."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


TRANSITIONS: dict[Liveness, frozenset[Liveness]] = {
    Liveness.ALIVE: frozenset({Liveness.ALIVE, Liveness.SUSPECT, Liveness.DEAD}),
    Liveness.SUSPECT: frozenset({Liveness.ALIVE, Liveness.SUSPECT, Liveness.DEAD}),
    Liveness.DEAD: frozenset({Liveness.DEAD}),
}
"""Where each state can go. Nobody returns from the dead: others have acted on the news."""


@dataclass(frozen=True, slots=True)
class Lease:
    """How much silence is allowed.

    Args:
        suspect_s: silence after which nothing new is sent to the peer, in seconds.
        dead_s: silence after which the peer counts as lost.
    """

    suspect_s: float
    dead_s: float

    def judge(self, life: Liveness, heard_s: float, now_s: float) -> Liveness:
        """Return the next state of a peer in state *life*.

        Args:
            heard_s: when it last gave a sign of life, in seconds of any clock that never goes back.
            now_s: the same clock, now.
        """
        if life is Liveness.DEAD:
            return Liveness.DEAD
        silent_s = now_s - heard_s
        if silent_s >= self.dead_s:
            return Liveness.DEAD
        if silent_s >= self.suspect_s:
            return Liveness.SUSPECT
        return Liveness.ALIVE
