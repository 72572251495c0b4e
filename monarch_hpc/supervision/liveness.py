"""Leases: the rules by which a silent peer becomes suspect, then dead.

TCP never notices a frozen or unplugged peer, so silence itself is the evidence.
"""

from __future__ import annotations

import enum

from monarch_hpc.core.dataclass import dataclass

__all__ = ["TRANSITIONS", "Lease", "Liveness"]


class Liveness(enum.Enum):
    """State of a peer, judged by its silence."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    DEAD = "dead"


TRANSITIONS: dict[Liveness, frozenset[Liveness]] = {
    Liveness.ALIVE: frozenset({Liveness.ALIVE, Liveness.SUSPECT, Liveness.DEAD}),
    Liveness.SUSPECT: frozenset({Liveness.ALIVE, Liveness.SUSPECT, Liveness.DEAD}),
    Liveness.DEAD: frozenset({Liveness.DEAD}),
}
"""Transitions allowed from each state. A dead peer stays dead, because other processes have acted on its death."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The limits on a peer's silence.

    Args:
        suspect_s: seconds of silence after which nothing new is sent to the peer.
        dead_s: seconds of silence after which the peer is lost.
    """

    suspect_s: float
    dead_s: float

    def next_state(self, state: Liveness, last_seen_s: float, now_s: float) -> Liveness:
        """Return the next state of a peer in state *state*.

        Args:
            last_seen_s: time of the last sign of life, in seconds of any monotonic clock.
            now_s: the current time, on the same clock.
        """
        if state is Liveness.DEAD:
            return Liveness.DEAD
        silent_s = now_s - last_seen_s
        if silent_s >= self.dead_s:
            return Liveness.DEAD
        if silent_s >= self.suspect_s:
            return Liveness.SUSPECT
        return Liveness.ALIVE
