"""The state that is reported again to the head of a later term: procs by agents, runs by programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from monarch_hpc.agent.head.events import DeadlinePassed, Event, HostGone, HostMissed, MeshReport, MeshRequested
from monarch_hpc.agent.head.hosts.roster import HostSlot
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState, RunState
from monarch_hpc.core.logger import Logger
from monarch_hpc.supervision.liveness import Liveness
from monarch_hpc.wire.control.allocation import HostEnded, HostEntry
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import SpawnProcs, StopProcs
from monarch_hpc.wire.control.runs import CloseRun, OpenRun

__all__ = ["Inheritance"]

_MAX_VOTED = 16
"""Number of hosts up to which an owner has a voice: each run changes the electorate, which all hosts are told, and
larger allocations are not divided into equal halves."""

_log = Logger(__name__)


class Inheritance:
    """Joins what agents and programs tell of the same runs, and ends what none of them has reported.

    Args:
        apply: changes *state* by an event.
        send: sends a message to the agents of some hosts.
        deliver: handles an agent's report about a mesh.
        explain: determines why a host is lost, and informs the members of its runs.
        stop_s: seconds between SIGTERM and SIGKILL of procs whose program has not come back.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        apply: Callable[[Event], None],
        send: Callable[[Iterable[int], Message], None],
        deliver: Callable[[MeshReport], None],
        explain: Callable[[HostSlot, str, Liveness, Mapping[str, RunState]], None],
        stop_s: float,
    ) -> None:
        self._state = state
        self._peers = peers
        self._apply = apply
        self._send = send
        self._deliver = deliver
        self._explain = explain
        self._stop_s = stop_s
        self._awaited: set[int] = set()  # hosts of the head before, until they are settled
        self._held: dict[tuple[str, int], list[Callable[[], None]]] = {}  # orders for a mesh on hosts that are awaited
        self._deferred: list[tuple[Link, Callable[[], None]]] | None = None  # until the awaited hosts are settled
        self._told: list[MeshReport] | None = None  # None: this head has inherited nothing, or all of it is settled

    def agents(self) -> list[Link]:
        """The links to the agents, by rank of their hosts."""
        return self._peers.of(slot.peer for slot in self._state.roster.all() if slot.peer is not None)

    def voters(self) -> list[Link]:
        """The links to those agents that may elect the next head: not to those whose Slurm job ends before others."""
        return self._peers.of(slot.peer for slot in self._state.roster.staying() if slot.peer is not None)

    def owner(self) -> Link | None:
        """The link to the owner of the oldest open run, if it has a voice in elections."""
        slots = self._state.roster.all()
        if len(slots) > _MAX_VOTED:
            return None
        for run in self._state.runs.values():
            links = [] if run.owner is None or not run.opened.votes else self._peers.known([run.owner])
            if not links or run.closing is not None:
                continue
            # The voice of an owner on the other one of two hosts would be lost with that host, and the head would stop.
            others = {slot.entry.name for slot in slots if slot.entry.rank != self._state.rank}
            here = run.opened.controller_host
            return None if len(slots) <= 2 and others & {here, here.partition(".")[0]} else links[0]
        return None

    @property
    def complete(self) -> bool:
        """Whether each host of the head before has joined or is lost."""
        return self._awaited <= self._state.roster.linked()

    def begin(self, hosts: Sequence[HostEntry]) -> None:
        """Await the hosts of the head before, and the programs of their procs."""
        self._told, self._deferred = [], []
        self._apply(DeadlinePassed())  # all others are lost
        for entry in hosts:
            self._awaited.add(entry.rank)
            self._apply(HostMissed(entry, f"it has not joined the head of term {self._state.term} yet"))

    def holds(self, order: SpawnProcs | StopProcs, perform: Callable[[], None]) -> bool:
        """Keep an order for hosts that may still join, and later ones for its mesh; False if it can be performed."""
        mesh = order.run, order.mesh
        awaited = self._awaited - self._state.roster.linked()
        if mesh not in self._held and not (isinstance(order, SpawnProcs) and awaited.intersection(order.hosts)):
            return False
        self._held.setdefault(mesh, []).append(perform)
        return True

    def defers(self, link: Link, perform: Callable[[], None]) -> bool:
        """Keep a request of *link* that needs all agents' reports; False if it can be performed."""
        if self._deferred is None:
            return False
        self._deferred.append((link, perform))
        return True

    def forget(self, link: Link) -> None:
        """Drop what was kept for a program or a tool that is gone: nobody would end what is done for it later."""
        if self._deferred is not None:
            self._deferred = [one for one in self._deferred if one[0] is not link]

    def resume(self) -> None:
        """Perform the orders that were kept and need not wait any more."""
        held, self._held = self._held, {}
        for orders in held.values():
            for perform in orders:
                perform()

    def keep(self, report: MeshReport) -> bool:
        """Keep a report about a mesh until its program has come back; False if none is awaited."""
        if self._told is None:
            return False
        self._told.append(report)
        return True

    def reopen(self, peer: int, opened: OpenRun) -> None:
        """Handle the return of a program, with the meshes that it has started in earlier terms."""
        for number, *hosts in opened.meshes:
            if self._state.kept_mesh(opened.run, number) is not None:
                continue  # the head before has kept it, and the program has not been told
            self._apply(MeshRequested(opened.run, number, peer, tuple(hosts)))
        meshes = {number for number, *_ in opened.meshes}
        told, kept = self._told or [], []
        for report in told:
            if report.run == opened.run and report.mesh in meshes:
                self._deliver(report)
            else:
                kept.append(report)
        if self._told is not None:
            self._told = kept
        used = {host for _, *hosts in opened.meshes for host in hosts}
        self._report_lost(peer, opened.run, used - self._state.roster.linked() - self._awaited)

    def settle_hosts(self, ranks: Sequence[int] | None = None) -> None:
        """Give up the hosts that have not joined, or only those of some *ranks*."""
        settled = set(self._awaited) if ranks is None else self._awaited.intersection(ranks)
        self._awaited -= settled
        lost = settled - self._state.roster.linked()
        for slot in [slot for slot in self._state.roster.all() if slot.entry.rank in lost]:
            cause = f"it did not join the head of term {self._state.term}"
            self._apply(HostGone(slot.entry.rank, cause))
            _log.warning("lost %s with the head of the term before", slot.entry.name)
            self._explain(slot, cause, Liveness.DEAD, self._state.runs)
        self.resume()
        if ranks is None:
            deferred, self._deferred = self._deferred or [], None
            for _, perform in deferred:
                perform()

    def settle_runs(self) -> None:
        """End the runs and meshes whose programs have not come back."""
        told, self._told = self._told or [], None
        for name in sorted({report.run for report in told}):
            if name not in self._state.runs:
                _log.warning("run %s: its program has not come back", name)
                self._send(self._state.roster.linked(), CloseRun(name, -1))
                continue
            for mesh in sorted({report.mesh for report in told if report.run == name}):
                linked = sorted(self._state.roster.linked())
                self._send(linked, StopProcs(name, mesh, linked, self._stop_s))

    def _report_lost(self, peer: int, name: str, ranks: Iterable[int]) -> None:
        for rank in sorted(ranks):
            slot = self._state.roster.at(rank)
            incarnation = "" if slot is None else slot.entry.incarnation
            ended = HostEnded(name, rank, self._state.roster.absence(rank), incarnation=incarnation)
            for member in self._peers.known([peer]):
                member.send(ended)
