"""The roster of agents, one for each host of the allocation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import DeathKind
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["HostRoster", "HostSlot"]


@dataclass(slots=True)
class HostSlot:
    """A host whose agent has joined.

    Attributes:
        problem: why the host cannot be used; empty if it can.
        drained: why the user took it out of use; empty while it is in use. Its agent stays.
        peer: the agent; None once it is lost, see *kind* and *cause*.
        returning: what is done to start a lost agent again, in words; empty if nothing.
    """

    entry: HostEntry
    problem: str
    peer: int | None
    life: Liveness = Liveness.ALIVE
    cause: str = ""
    drained: str = ""
    kind: DeathKind | None = None
    returning: str = ""


@dataclass(slots=True)
class HostRoster:
    """The agents of *num_hosts* hosts, some of which may have been *freed* since.

    Attributes:
        waiting: ranks of hosts that were asked for, and whose job has not begun: a later one has.
        leaving: ranks of hosts whose Slurm job ends: procs there are about to end.
    """

    num_hosts: int
    freed: set[int] = field(default_factory=set)
    waiting: set[int] = field(default_factory=set)
    leaving: set[int] = field(default_factory=set)
    _slots: dict[int, HostSlot] = field(default_factory=dict)

    def refusal(self, entry: HostEntry, num_hosts: int = 0) -> str:
        """Return why another agent cannot join, empty if it can.

        Args:
            num_hosts: see `grow`.
        """
        slot = self._slots.get(entry.rank)
        if slot is not None and slot.peer is not None:
            return f"host {entry.rank} has an agent already: process {slot.entry.pid} on {slot.entry.name}"
        added = 0 < entry.first_rank <= entry.rank < num_hosts
        if not 0 <= entry.rank < self.num_hosts and not added:
            return f"there is no host {entry.rank} among {self.num_hosts}"
        if entry.rank in self.freed:
            return f"host {entry.rank} was given back"
        return ""

    def grow(self, first_rank: int, num_hosts: int) -> None:
        """Count in the hosts from *first_rank* up to *num_hosts*, of a job that has joined the allocation."""
        if not first_rank:
            return
        self.waiting.update(range(self.num_hosts, num_hosts))
        self.waiting.difference_update(range(first_rank, num_hosts))
        self.num_hosts = max(self.num_hosts, num_hosts)

    def add(self, peer: int, entry: HostEntry, problem: str) -> None:
        """Add an agent, in place of a lost one. A host that the user has taken out of use stays so."""
        before = self._slots.get(entry.rank)
        self.leaving.discard(entry.rank)
        self._slots[entry.rank] = HostSlot(entry, problem, peer, drained=before.drained if before is not None else "")

    def miss(self, entry: HostEntry, cause: str) -> None:
        """Add a host that the head before had, and whose agent has not joined this one."""
        self._slots[entry.rank] = HostSlot(entry, "", None, Liveness.DEAD, cause)

    def lose(self, rank: int, cause: str) -> None:
        """Mark the agent of a host as lost."""
        slot = self._slots[rank]
        slot.peer, slot.life, slot.cause = None, Liveness.DEAD, cause

    def explain(self, rank: int, kind: DeathKind, cause: str) -> None:
        """Record why the agent of a host was lost, unless the host has left the roster or has another agent."""
        slot = self._slots.get(rank)
        if slot is not None and slot.peer is None:
            slot.kind, slot.cause = kind, cause

    def expect(self, rank: int, returning: str) -> None:
        """Record what is done to start the agent of a lost host again; empty for nothing."""
        slot = self._slots.get(rank)
        if slot is not None and slot.peer is None:
            slot.returning = returning

    def free(self, rank: int) -> None:
        """Forget a host that was given back."""
        self._slots.pop(rank, None)
        self.freed.add(rank)

    def drain(self, rank: int, reason: str) -> None:
        """Take a host out of use, or back into use if *reason* is empty."""
        self._slots[rank].drained = reason

    def staying(self) -> list[HostSlot]:
        """The slots of the connected agents whose Slurm job does not end, by rank."""
        return [slot for slot in self.all() if slot.peer is not None and slot.entry.rank not in self.leaving]

    def set_life(self, rank: int, life: Liveness) -> None:
        """Record the liveness of a host's agent."""
        self._slots[rank].life = life

    def of(self, peer: int) -> HostSlot | None:
        """The slot of the agent *peer*."""
        return next((slot for slot in self._slots.values() if slot.peer == peer), None)

    def named(self, name: str) -> HostSlot | None:
        """The slot of the host called *name*."""
        return next((slot for slot in self._slots.values() if slot.entry.name == name), None)

    def at(self, rank: int) -> HostSlot | None:
        """The slot of the host of this rank, if its agent ever joined."""
        return self._slots.get(rank)

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
        there = slot is not None and slot.peer is not None and rank not in self.leaving
        return there and slot is not None and not slot.problem and not slot.drained

    def hosts(self) -> list[HostEntry]:
        """The usable hosts, by rank."""
        return [slot.entry for slot in self.all() if self.usable(slot.entry.rank)]

    def connected(self) -> list[HostEntry]:
        """The hosts with a working agent, by rank: those in use and those that the user has taken out of use."""
        return [slot.entry for slot in self.all() if slot.peer is not None and not slot.problem]

    def missing(self) -> dict[int, str]:
        """Ranks without a working agent, with the reason."""
        return {
            rank: self.absence(rank)
            for rank in range(self.num_hosts)
            if rank not in self.freed | self.waiting and (rank not in self._slots or self._slots[rank].problem)
        }

    def absence(self, rank: int) -> str:
        """Return why a host cannot be used."""
        slot = self._slots.get(rank)
        if slot is None and rank in self.waiting:
            return "the host is of a Slurm job that has not begun"
        if slot is None:
            return "the host was given back" if rank in self.freed else "its agent did not report"
        if slot.peer is not None and slot.drained:
            return f"the host is drained: {slot.drained}; 'monarch-hpc node undrain {slot.entry.name}' uses it again"
        if slot.peer is not None and rank in self.leaving:
            return f"job {slot.entry.job_id} ends, and {slot.entry.name} with it"
        return slot.problem or f"the host is lost: {slot.cause}"

    def name(self, rank: int) -> str:
        """The name of a host whose agent has joined."""
        return self._slots[rank].entry.name
