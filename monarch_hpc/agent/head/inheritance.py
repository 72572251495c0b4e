"""The state that the head of a later term is told again: by agents their procs, and by programs their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from monarch_hpc.agent.head.events import DeadlinePassed, Event, HostGone, HostMissed, MeshReport, MeshRequested
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.core.logger import Logger
from monarch_hpc.wire.control.allocation import HostEnded, HostEntry
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import StopProcs
from monarch_hpc.wire.control.runs import CloseRun, OpenRun

__all__ = ["Inheritance"]

_log = Logger(__name__)


class Inheritance:
    """Joins what agents and programs tell of the same runs, and ends what nobody has told of.

    Args:
        apply: changes *state* by an event.
        send: sends a message to the agents of some hosts.
        deliver: handles an agent's report about a mesh.
        stop_s: seconds between SIGTERM and SIGKILL of procs whose program has not come back.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        apply: Callable[[Event], None],
        send: Callable[[Iterable[int], Message], None],
        deliver: Callable[[MeshReport], None],
        stop_s: float,
    ) -> None:
        self._state = state
        self._peers = peers
        self._apply = apply
        self._send = send
        self._deliver = deliver
        self._stop_s = stop_s
        self._awaited: set[int] = set()  # hosts of the head before, which have not joined
        self._told: list[MeshReport] | None = None  # None: this head has inherited nothing, or all of it is settled

    def begin(self, hosts: Sequence[HostEntry]) -> None:
        """Await the hosts of the head before, and the programs of their procs."""
        self._told = []
        self._apply(DeadlinePassed())  # all others are lost
        for entry in hosts:
            self._awaited.add(entry.rank)
            self._apply(HostMissed(entry, f"it has not joined the head of term {self._state.term} yet"))

    def keep(self, report: MeshReport) -> bool:
        """Keep a report about a mesh until its program has come back; False if none is awaited."""
        if self._told is None:
            return False
        self._told.append(report)
        return True

    def reopen(self, peer: int, opened: OpenRun) -> None:
        """Handle the return of a program, with the meshes that it has started in earlier terms."""
        for number, *hosts in opened.meshes:
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
        elif lost := {host for _, *hosts in opened.meshes for host in hosts} - self._state.roster.linked():
            self._report_lost(opened.run, lost)

    def settle_hosts(self) -> None:
        """Give up the hosts that have not joined."""
        lost = self._awaited - self._state.roster.linked()
        self._awaited.clear()
        for rank in lost:
            self._apply(HostGone(rank, f"it did not join the head of term {self._state.term}"))
            _log.warning("lost %s with the head of the term before", self._state.roster.name(rank))
        for name in self._state.runs:
            self._report_lost(name, lost)

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

    def _report_lost(self, name: str, ranks: Iterable[int]) -> None:
        for rank in sorted(ranks):
            for member in self._peers.of(self._state.runs[name].members):
                member.send(HostEnded(name, rank, self._state.roster.absence(rank)))
