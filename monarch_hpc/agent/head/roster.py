"""The roster of agents, one for each host of the allocation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from monarch_hpc.agent.head.link import Link
from monarch_hpc.supervision.lease import Liveness
from monarch_hpc.wire.control.allocation import HostEntry, Join
from monarch_hpc.wire.control.message import Message

__all__ = ["HostRoster", "HostSlot"]


@dataclass(slots=True, eq=False)
class HostSlot:
    """A host whose agent has joined.

    Attributes:
        problem: why the host cannot be used; empty if it can.
        link: the link to its agent; None once that is lost, see *cause*.
    """

    entry: HostEntry
    problem: str
    link: Link | None
    life: Liveness = Liveness.ALIVE
    cause: str = ""


class HostRoster:
    """The agents of *num_hosts* hosts."""

    def __init__(self, num_hosts: int) -> None:
        self._num_hosts = num_hosts
        self._slots: dict[int, HostSlot] = {}

    def join(self, link: Link, join: Join) -> str:
        """Add an agent, one for each host; return why it is refused, empty if it is not."""
        rank = join.host.rank
        slot = self._slots.get(rank)
        if slot is not None and slot.link is not None:
            return f"host {rank} has an agent already: process {slot.entry.pid} on {slot.entry.name}"
        if not 0 <= rank < self._num_hosts:
            return f"there is no host {rank} among {self._num_hosts}"
        self._slots[rank] = HostSlot(join.host, join.problem, link)
        return ""

    def of(self, link: Link) -> HostSlot | None:
        """The slot of the agent behind *link*."""
        return next((slot for slot in self._slots.values() if slot.link is link), None)

    def all(self) -> list[HostSlot]:
        """The slots of all agents that ever joined, by rank."""
        return [slot for _, slot in sorted(self._slots.items())]

    def linked(self) -> set[int]:
        """Ranks of the hosts whose agent is connected."""
        return {rank for rank, slot in self._slots.items() if slot.link is not None}

    def usable(self, rank: int) -> bool:
        """Tell whether procs can be started on a host."""
        slot = self._slots.get(rank)
        return slot is not None and slot.link is not None and not slot.problem

    def hosts(self) -> list[HostEntry]:
        """The usable hosts, by rank."""
        return [slot.entry for slot in self.all() if self.usable(slot.entry.rank)]

    def missing(self) -> dict[int, str]:
        """Ranks without a working agent, with the reason."""
        return {
            rank: self.absence(rank)
            for rank in range(self._num_hosts)
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

    def send(self, ranks: Iterable[int], message: Message) -> None:
        """Send *message* to the connected agents among *ranks*."""
        for rank in ranks:
            slot = self._slots.get(rank)
            if slot is not None and slot.link is not None:
                slot.link.send(message)
