"""Hosts that go out of use at the head: all with the allocation, or some before that, for good or for now."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field

from monarch_hpc.agent.head.events import Event, HostDrained, HostEmptied, HostFreed, ShutdownBegan
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.wire.control.allocation import DrainHost, FreeHosts, HostsFreed, ShutDown, ShutDownDone
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.refusal import refuse

__all__ = ["Departures"]

_CLOSE_S = 10.0
"""Beyond the procs' own grace, how long agents may take to report that nothing is left on their hosts."""


_REASON_CHARS = 200
"""Limit on the stored reason of a drain, which `status` and errors show."""


@dataclass(slots=True, eq=False)
class _Departure:
    """One request to free hosts: those that have not left, and the processes left on the others."""

    requester: Link
    waiting: set[int]
    left: dict[str, int] = field(default_factory=dict)


class Departures:
    """The shutdown of an allocation, and the requests to drain or free some of its hosts.

    Args:
        apply: changes *state* by an event.
        send: sends a message to the agents of some hosts.
        later: runs a callback after a delay in seconds.
        freed: called when hosts no longer belong to the allocation.
        ended: called once the shutdown is complete and has been reported.
    """

    def __init__(
        self,
        state: HeadState,
        apply: Callable[[Event], None],
        send: Callable[[Iterable[int], Message], None],
        later: Callable[[float, Callable[[], None]], object],
        freed: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self._state = state
        self._apply = apply
        self._send = send
        self._later = later
        self._freed = freed
        self._ended = ended
        self._over = False
        self._movers: list[Link] = []
        self._requesters: list[Link] = []
        self._open: list[_Departure] = []

    # ---- all hosts ----

    def vacate(self, requester: Link) -> str:
        """Refuse runs while *requester* is connected; or return what uses the allocation."""
        if self._state.runs:
            return f"is used by run {', '.join(self._state.runs)}; its hosts can move once that is over"
        if self._state.kept:
            return f"keeps mesh {min(self._state.kept)}; 'monarch-hpc mesh stop' frees it"
        self._movers.append(requester)
        return ""

    def refusal(self) -> str:
        """Why no run can be opened; empty if one can."""
        return "its hosts are about to join another allocation" if self._movers else ""

    def shut_down(self, grace_s: float, death: Death | None = None, requester: Link | None = None) -> None:
        """End all procs and agents; see `Head.shut_down`."""
        if requester is not None:
            self._requesters.append(requester)
        if self._state.shutting_down is not None:
            return
        why = death or Death(DeathKind.STOPPED, "")
        self._apply(ShutdownBegan(why.kind, why.cause))
        self._later(grace_s + _CLOSE_S, self._on_shutdown_deadline)
        self._send(self._state.roster.linked(), ShutDown(grace_s, why.kind.value, why.cause))
        self._report()

    def _on_shutdown_deadline(self) -> None:
        for rank in sorted(self._state.shutting_down or ()):
            name = self._state.roster.name(rank)
            self._apply(HostEmptied(rank, {} if name in self._state.left else {name: -1}))
        self._report()

    # ---- some hosts ----

    def free(self, requester: Link, order: FreeHosts) -> None:
        """Ask the agents of some hosts to end, and forget the hosts; or refuse that."""
        roster = self._state.roster
        known = {slot.entry.rank for slot in roster.all()} | roster.missing().keys()
        problem = ""
        if self._state.shutting_down is not None:
            problem = "the allocation is being released"
        elif self._state.rank in order.hosts:
            problem = f"host {self._state.rank} cannot leave: the head is there"
        elif 0 in order.hosts and 0 in roster.linked():
            problem = "host 0 cannot leave: the batch script is there"
        elif strange := sorted(set(order.hosts) - known):
            problem = f"host {strange[0]} is not in the allocation"
        if problem:
            requester.send(refuse(order, problem))
            return
        leaving = set(order.hosts) & roster.linked()
        departure = _Departure(requester, leaving)
        self._open.append(departure)
        self._forget_hosts(set(order.hosts) - leaving)  # lost, or never there
        self._send(set(leaving), ShutDown(order.grace_s))
        self._later(order.grace_s + _CLOSE_S, lambda: self._give_up(departure))
        self._report()

    def _give_up(self, departure: _Departure) -> None:
        # Slurm ends an agent that does not end, together with all else on a host that is given back.
        for rank in departure.waiting:
            departure.left.setdefault(self._state.roster.name(rank), -1)
        departure.waiting.clear()
        self._report()

    def _forget_hosts(self, ranks: Iterable[int]) -> None:
        if leaving := sorted(ranks):
            for rank in leaving:
                self._apply(HostFreed(rank))
            self._freed()

    def drain(self, order: DrainHost) -> str:
        """Take a host out of use, or back into use; return why that cannot be, empty if it was done."""
        slot = self._state.roster.named(order.host)
        if slot is None:
            return f"there is no host {order.host!r:.80} in the allocation"
        self._apply(HostDrained(slot.entry.rank, order.reason[:_REASON_CHARS]))
        return ""

    # ---- both ----

    def note(self, rank: int, left: dict[str, int]) -> None:
        """Note an agent's report that its host is empty."""
        self._apply(HostEmptied(rank, left))
        for departure in self._open:
            if rank in departure.waiting:
                departure.left.update(left)
        self._report()

    def lose(self, rank: int, name: str) -> None:
        """Note that the link to the agent of a host has ended."""
        for departure in self._open:
            if rank in departure.waiting:
                departure.waiting.discard(rank)
                departure.left.setdefault(name, -1)
                self._forget_hosts([rank])
        self._report()

    def forget(self, requester: Link) -> None:
        """Send no answer to a requester that is gone; its request is carried out, but a move that was not decided."""
        if requester in self._requesters:
            self._requesters.remove(requester)
        self._movers = [mover for mover in self._movers if mover is not requester]

    def _report(self) -> None:
        for departure in [one for one in self._open if not one.waiting]:
            self._open.remove(departure)
            departure.requester.send(HostsFreed(departure.left))
        if self._state.shutting_down == set() and not self._over:
            self._over = True
            for requester in self._requesters:
                requester.send(ShutDownDone(self._state.left))
            self._ended()
