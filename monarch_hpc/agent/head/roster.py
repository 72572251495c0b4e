"""The roster of agents, one for each host of the allocation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from monarch_hpc.supervision.lease import Liveness
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["HostRoster", "HostSlot"]


@dataclass(slots=True)
class HostSlot:
    """A host whose agent has joined.

    Attributes:
        problem: why the host cannot be used; empty if it can.
        peer: the agent; None once it is lost, see *cause*.
    """

    entry: HostEntry
    problem: str
    peer: int | None
    life: Liveness = Liveness.ALIVE
    cause: str = ""


@dataclass(slots=True)
class HostRoster:
    """The agents of *num_hosts* hosts."""

    num_hosts: int
    _slots: dict[int, HostSlot] = field(default_factory=dict)

    def refusal(self, entry: HostEntry) -> str:
        """Return why another agent cannot join, empty if it can."""
        slot = self._slots.get(entry.rank)
        if slot is not None and slot.peer is not None:
            return f"host {entry.rank} has an agent already: process {slot.entry.pid} on {slot.entry.name}"
        if not 0 <= entry.rank < self.num_hosts:
            return f"there is no host {entry.rank} among {self.num_hosts}"
        return ""

    def add(self, peer: int, entry: HostEntry, problem: str) -> None:
        """Add an agent, in place of a lost one."""
        self._slots[entry.rank] = HostSlot(entry, problem, peer)

    def lose(self, rank: int, cause: str) -> None:
        """Mark the agent of a host as lost."""
        slot = self._slots[rank]
        slot.peer, slot.life, slot.cause = None, Liveness.DEAD, cause

    def set_life(self, rank: int, life: Liveness) -> None:
        """Record the liveness of a host's agent."""
        self._slots[rank].life = life

    def of(self, peer: int) -> HostSlot | None:
        """The slot of the agent *peer*."""
        return next((slot for slot in self._slots.values() if slot.peer == peer), None)

    def peers(self, ranks: Iterable[int]) -> list[int]:
        """The connected agents of some hosts."""
        slots = filter(None, map(self._slots.get, ranks))
        return [slot.peer for slot in slots if slot.peer is not None]

    def all(self) -> list[HostSlot]:
        """The slots of all agents that ever joined, by rank."""
        return [slot for _, slot in sorted(self._slots.items())]

    def linked(self) -> set[int]:
        """Ranks of the hosts whose agent is connected."""
        return {rank for rank, slot in self._slots.items() if slot.peer is not None}

    def usable(self, rank: int) -> bool:
        """Tell whether procs can be started on a host."""
        slot = self._slots.get(rank)
        return slot is not None and slot.peer is not None and not slot.problem

    def hosts(self) -> list[HostEntry]:
        """The usable hosts, by rank."""
        return [slot.entry for slot in self.all() if self.usable(slot.entry.rank)]

    def missing(self) -> dict[int, str]:
        """Ranks without a working agent, with the reason."""
        return {
            rank: self.absence(rank)
            for rank in range(self.num_hosts)
            if rank not in self._slots or self._slots[rank].problem
        }

    def absence(self, rank: int) -> str:
        """Return why a host cannot be used."""
        slot = self._slots.get(rank)
        if slot is None:
            return "its agent did not report"
        return slot.problem or f"the host is lost: {slot.cause}"

    def name(self, rank: int) -> str:
        """The name of a host whose agent has joined."""
        return self._slots[rank].entry.name
