"""Who is there: the seats of the agents, one for each host of the allocation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monarch_hpc.agent.head.link import Link
from monarch_hpc.supervision.lease import Liveness
from monarch_hpc.wire.messages import HostEntry, Join, Message

__all__ = ["HostRoster", "HostSlot"]


@dataclass(slots=True, eq=False)
class HostSlot:
    """One host whose agent has reported.

    Attributes:
        problem: what is wrong with the host, empty if nothing.
        link: the way to its agent; None once that is lost, for *cause*.
    """

    entry: HostEntry
    problem: str
    link: Link | None
    life: Liveness = Liveness.ALIVE
    cause: str = ""


class HostRoster:
    """The seats of *num_hosts* agents."""

    def __init__(self, num_hosts: int) -> None:
        self._num_hosts = num_hosts
        self._slots: dict[int, HostSlot] = {}

    def join(self, link: Link, join: Join) -> str:
        """Seat an agent; return why not, empty if it is seated. One host has one agent."""
        rank = join.host.rank
        slot = self._slots.get(rank)
        if slot is not None and slot.link is not None:
            return f"host {rank} has an agent already: process {slot.entry.pid} on {slot.entry.name}"
        if not 0 <= rank < self._num_hosts:
            return f"there is no host {rank} among {self._num_hosts}"
        self._slots[rank] = HostSlot(join.host, join.problem, link)
        return ""

    def of(self, link: Link) -> HostSlot | None:
        """The seat of the agent behind *link*."""
        return next((slot for slot in self._slots.values() if slot.link is link), None)

    def all(self) -> list[HostSlot]:
        """All seats ever taken, by rank."""
        return [slot for _, slot in sorted(self._slots.items())]

    def linked(self) -> set[int]:
        """Ranks of the hosts whose agent can be spoken to."""
        return {rank for rank, slot in self._slots.items() if slot.link is not None}

    def usable(self, rank: int) -> bool:
        """Tell whether procs can be started on a host."""
        slot = self._slots.get(rank)
        return slot is not None and slot.link is not None and not slot.problem

    def hosts(self) -> list[HostEntry]:
        """The usable hosts, by rank."""
        return [slot.entry for slot in self.all() if self.usable(slot.entry.rank)]

    def missing(self) -> dict[int, str]:
        """Ranks that no working agent has reported for, and why."""
        return {
            rank: self.absence(rank)
            for rank in range(self._num_hosts)
            if rank not in self._slots or self._slots[rank].problem
        }

    def absence(self, rank: int) -> str:
        """Say why a host cannot be used."""
        slot = self._slots.get(rank)
        if slot is None:
            return "its agent did not report"
        return slot.problem or f"the host is lost: {slot.cause}"

    def name(self, rank: int) -> str:
        """The name of a host that has reported."""
        return self._slots[rank].entry.name

    def send(self, ranks: Iterable[int], message: Message) -> None:
        """Send *message* to those of *ranks* that can be spoken to."""
        for rank in ranks:
            slot = self._slots.get(rank)
            if slot is not None and slot.link is not None:
                slot.link.send(message)
