"""The end of the head's Slurm job while hosts of other jobs stay: its own hosts end, and the others elect an heir."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from monarch_hpc.agent.head.deadline import Later
from monarch_hpc.agent.head.events import Event, HostLeaves
from monarch_hpc.agent.head.hosts.losses import HostLosses
from monarch_hpc.agent.head.hosts.roster import HostSlot
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.core.logger import Logger
from monarch_hpc.wire.control.allocation import ShutDown
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.succession import Resign

__all__ = ["ResignWork", "Resignation"]

_REPORT_S = 0.5
"""Beyond the procs' own grace, how long agents may take to report that nothing is left; Slurm kills them soon after."""

_log = Logger(__name__)


@dataclass(frozen=True, slots=True)
class ResignWork:
    """What the head's agent does when its head resigns.

    Attributes:
        hand_over: lets the hosts that stay elect the next head; calls back once with whether they can.
        resigned: called when all have been told: the agent ends.
    """

    hand_over: Callable[[Callable[[bool], None]], None]
    resigned: Callable[[], None]


class Resignation:
    """Ends the hosts of the head's own job and then the head, where other jobs go on. It does no I/O.

    Args:
        apply: changes *state* by an event.
        send: sends a message to the agents of some hosts.
        later: runs a callback after a delay in seconds.
        lose: handles the loss of an agent, with the cause.
        work: None where the head ends with its allocation.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        apply: Callable[[Event], None],
        send: Callable[[Iterable[int], Message], None],
        losses: HostLosses,
        later: Later,
        lose: Callable[[Link, str], object],
        work: ResignWork | None,
    ) -> None:
        self._state = state
        self._peers = peers
        self._apply = apply
        self._send = send
        self._losses = losses
        self._later = later
        self._lose = lose
        self._work = work
        self._death: Death | None = None  # why, once it has begun
        self._over = False

    def ends_with_head(self, slot: HostSlot) -> bool:
        """Tell whether a host is in the head's own job, which ends as a whole."""
        return slot.entry.job_id == self._job_id

    def note_end(self, slot: HostSlot) -> None:
        """An agent has got SIGTERM: if it is in another job, that one ends. Not every host of a job notices at once."""
        if not self.ends_with_head(slot):
            self._leave(slot.entry.job_id)

    def begin(self) -> None:
        """Slurm ends the head's job: where others stay, nothing is started on its hosts any more."""
        if self._work is not None and self._job_id and any(map(self._is_other, self._state.roster.staying())):
            self._leave(self._job_id)

    def take(self, stop_s: float, why: Death | None, refused: Callable[[], None]) -> bool:
        """End the hosts of the head's job, whose procs have *stop_s* seconds, and resign; False if nobody stays.

        Args:
            refused: called if no heir can be elected.
        """
        roster = self._state.roster
        leaves = self._state.rank in roster.leaving and any(map(self._is_other, roster.staying()))
        if self._death is not None:
            return True
        if self._work is None or self._state.shutting_down is not None or not leaves:
            return False
        self._death = death = why or Death(DeathKind.UNKNOWN, f"Slurm ends job {self._job_id}")

        def handed_over(possible: bool) -> None:
            if possible:
                self._end_hosts(stop_s, death)
            else:
                self._death = None
                refused()

        self._work.hand_over(handed_over)
        return True

    def left(self, rank: int) -> None:
        """Note that a host has no agent any more, or an empty one, if it is the head's own."""
        if self._death is not None and rank in self._state.roster.leaving:
            own = {slot.entry.rank for slot in self._own()}
            if own <= {self._state.rank} and (rank == self._state.rank or self._state.rank in self._emptied()):
                self._resign(self._death)

    def _end_hosts(self, stop_s: float, death: Death) -> None:
        ranks = [slot.entry.rank for slot in self._own()]
        _log.warning("%s: the hosts of other jobs go on, and elect an heir of this head", death.cause)
        for rank in ranks:
            self._losses.expect(rank, death)
        self._later(stop_s + _REPORT_S, lambda: self._resign(death))
        self._send(ranks, ShutDown(stop_s, death.kind.value, death.cause))

    def _resign(self, death: Death) -> None:
        if self._over or self._work is None:
            return
        self._over = True
        for slot in self._own():
            for link in self._peers.known([slot.peer or 0]):
                self._lose(link, death.cause)
        self._send([slot.entry.rank for slot in self._state.roster.staying()], Resign(death.cause))
        self._work.resigned()

    @property
    def _job_id(self) -> int:
        slot = self._state.roster.at(self._state.rank)
        return 0 if slot is None else slot.entry.job_id

    def _is_other(self, slot: HostSlot) -> bool:
        return not self.ends_with_head(slot)

    def _own(self) -> list[HostSlot]:
        """The hosts of the head's job that have an agent."""
        return [slot for slot in self._state.roster.all() if slot.peer is not None and self.ends_with_head(slot)]

    def _emptied(self) -> set[int]:
        return {slot.entry.rank for slot in self._own() if slot.entry.name in self._state.left}

    def _leave(self, job_id: int) -> None:
        for slot in self._state.roster.staying():
            if slot.entry.job_id == job_id:
                self._apply(HostLeaves(slot.entry.rank))
