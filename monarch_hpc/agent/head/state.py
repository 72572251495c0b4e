"""The head's state: plain data, changed by events only.

`apply` depends on nothing but its arguments, so that the state can be tested, and rebuilt from its events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace

from monarch_hpc.agent.head.events import (
    DeadlinePassed,
    Event,
    HostDrained,
    HostEmptied,
    HostFreed,
    HostGone,
    HostJoined,
    HostLeaves,
    HostLifeChanged,
    HostLossExplained,
    HostMissed,
    HostReturnChanged,
    KeptEnded,
    KeptLeft,
    KeptUsed,
    MeshLeftHost,
    MeshRequested,
    MeshWasKept,
    PeerEnteredRun,
    PeerLeftRun,
    ProcGone,
    ProcStarted,
    ProcStopped,
    RunAttached,
    RunLeftHost,
    RunStopping,
    ShutdownBegan,
)
from monarch_hpc.agent.head.hosts.roster import HostRoster
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.wire.control.runs import OpenRun

__all__ = ["HeadState", "KeptState", "MeshState", "RunState", "apply"]

_NO_PEER = 0
"""Requester of a mesh that the head knows from agents alone; peers have other numbers."""

_TITLE_CHARS = 1000
"""Limit on a stored command line, which may be two megabytes long: a `status` report contains those of all runs."""


@dataclass(slots=True)
class MeshState:
    """One mesh of procs.

    Attributes:
        peer: the peer that requested it.
        hosts: hosts that may have procs of it.
        alive: rank of a proc -> its host.
        suspect: ranks of procs stopped by a signal.
    """

    peer: int
    hosts: set[int]
    alive: dict[int, int] = field(default_factory=dict)
    suspect: set[int] = field(default_factory=set)


@dataclass(slots=True)
class RunState:
    """One run.

    Attributes:
        opened: the request of its owner, or of its first member.
        epoch: increases when another owner takes over the run.
        closing: hosts that have not yet reported their procs gone; None while the run is open.
        emptied: numbers of meshes that have lost all their hosts, and may come back on others.
    """

    opened: OpenRun
    opened_s: float
    epoch: int
    owner: int | None = None
    members: list[int] = field(default_factory=list)
    meshes: dict[int, MeshState] = field(default_factory=dict)
    closing: set[int] | None = None
    emptied: set[int] = field(default_factory=set)

    def has_mesh(self, mesh: int) -> bool:
        """Tell whether a mesh was requested, and not stopped."""
        return mesh in self.meshes or mesh in self.emptied


@dataclass(slots=True)
class KeptState:
    """A mesh that stays when its run ends.

    Attributes:
        run: the run that started it.
        number: its number.
        num_ranks: its size.
        mesh: its hosts and procs.
        users: programs that use it.
    """

    run: str
    number: int
    num_ranks: int
    mesh: MeshState
    users: set[int] = field(default_factory=set)


@dataclass(slots=True)
class HeadState:
    """The state of a head.

    Attributes:
        rank: rank of the head's host.
        term: number of the head's term.
        num_attached: number of the last member, see `core.ids.first_member`: requests to open or attach to a run.
        past_deadline: whether the head has stopped waiting for agents.
        shutting_down: hosts that have not reported how many processes are left; None before the end.
        kept: the meshes that stay when their runs end, by name.
        left: number of processes left by host, see `HostEmptied`.
    """

    roster: HostRoster
    runs: dict[str, RunState] = field(default_factory=dict)
    num_attached: int = 0
    past_deadline: bool = False
    rank: int = 0
    term: int = 1
    shutting_down: set[int] | None = None
    left: dict[str, int] = field(default_factory=dict)
    kept: dict[str, KeptState] = field(default_factory=dict)

    def mesh(self, run: str, mesh: int) -> MeshState | None:
        """The mesh *mesh* of a run, if there is one; also a kept one."""
        found = self.runs.get(run)
        known = None if found is None else found.meshes.get(mesh)
        kept = None if known is not None else self.kept_mesh(run, mesh)
        return known if kept is None else kept.mesh

    def meshes(self) -> Iterator[MeshState]:
        """All meshes, of runs and kept ones."""
        for run in self.runs.values():
            yield from run.meshes.values()
        for kept in self.kept.values():
            yield kept.mesh

    def kept_mesh(self, run: str, mesh: int) -> KeptState | None:
        """The kept mesh with number *mesh* that *run* has started, if there is one."""
        return next((kept for kept in self.kept.values() if (kept.run, kept.number) == (run, mesh)), None)

    def owns(self, peer: int) -> bool:
        """Tell whether *peer* owns a run."""
        return any(run.owner == peer for run in self.runs.values())


def apply(state: HeadState, event: Event) -> None:
    """Change *state* by *event*; events about runs and meshes that have ended change nothing."""
    match event:
        case HostJoined():
            state.roster.grow(event.entry.first_rank, event.num_hosts)
            state.roster.add(event.peer, event.entry, event.problem)
        case HostLifeChanged():
            state.roster.set_life(event.rank, event.life)
        case HostGone():
            state.roster.lose(event.rank, event.cause)
            for name, run in list(state.runs.items()):
                _empty_host(run, event.rank)
                _leave_host(state, name, event.rank)
            for kept in state.kept.values():
                _empty_mesh(kept.mesh, event.rank)
            state.kept = {name: kept for name, kept in state.kept.items() if kept.mesh.hosts}
            if state.shutting_down is not None:
                state.shutting_down.discard(event.rank)
        case HostLossExplained():
            state.roster.explain(event.rank, event.kind, event.cause)
        case HostLeaves():
            state.roster.leaving.add(event.rank)
        case HostMissed():
            state.roster.miss(event.entry, event.cause)
        case HostReturnChanged():
            state.roster.expect(event.rank, event.what)
        case HostDrained():
            state.roster.drain(event.rank, event.reason)
        case HostFreed():
            state.roster.free(event.rank)
        case DeadlinePassed():
            state.past_deadline = True
        case RunAttached():
            _attach(state, event)
        case PeerEnteredRun():
            state.runs[event.run].members.append(event.peer)
        case PeerLeftRun():
            state.runs[event.run].members.remove(event.peer)
        case RunStopping():
            run = state.runs[event.run]
            run.closing = state.roster.linked()
            if not run.closing:
                del state.runs[event.run]
        case RunLeftHost():
            _leave_host(state, event.run, event.host)
        case MeshRequested():
            mesh = state.runs[event.run].meshes.setdefault(event.mesh, MeshState(event.peer, set()))
            mesh.hosts.update(event.hosts)
            state.runs[event.run].emptied.discard(event.mesh)
        case MeshLeftHost():
            _leave_mesh(state, event)
        case MeshWasKept():
            _keep_mesh(state, event)
        case KeptUsed():
            state.kept[event.name].users.add(event.peer)
        case KeptLeft():
            state.kept[event.name].users.discard(event.peer)
        case KeptEnded():
            del state.kept[event.name]
        case ProcStarted() | ProcStopped() | ProcGone():
            _change_proc(state, event)
        case ShutdownBegan():
            state.shutting_down = state.roster.linked()
        case HostEmptied():
            state.left.update(event.left)
            if state.shutting_down is not None:
                state.shutting_down.discard(event.rank)


def _attach(state: HeadState, event: RunAttached) -> None:
    state.num_attached += 1
    opened = _shorten(event.opened)
    run = state.runs.get(opened.run)
    if run is None:
        run = state.runs[opened.run] = RunState(opened, event.time_s, opened.epoch or state.num_attached)
    if opened.owner:
        if run.owner not in (None, event.peer):
            run.epoch = state.num_attached
        if opened.takes:
            for mesh in run.meshes.values():
                mesh.peer = event.peer
        run.owner, run.opened = event.peer, opened
    if event.peer not in run.members:
        run.members.append(event.peer)


def _shorten(opened: OpenRun) -> OpenRun:
    title, host = opened.title, opened.controller_host
    return replace(opened, title=title[:_TITLE_CHARS], controller_host=host[:_TITLE_CHARS])


def _empty_host(run: RunState, host: int) -> None:
    for mesh in run.meshes.values():
        _empty_mesh(mesh, host)
    run.emptied.update(number for number, mesh in run.meshes.items() if not mesh.hosts)
    run.meshes = {number: mesh for number, mesh in run.meshes.items() if mesh.hosts}


def _empty_mesh(mesh: MeshState, host: int) -> None:
    mesh.alive = {rank: on for rank, on in mesh.alive.items() if on != host}
    mesh.suspect &= mesh.alive.keys()
    mesh.hosts.discard(host)


def _leave_host(state: HeadState, name: str, host: int) -> None:
    run = state.runs.get(name)
    if run is None or run.closing is None:
        return
    run.closing.discard(host)
    if not run.closing:
        del state.runs[name]


def _leave_mesh(state: HeadState, event: MeshLeftHost) -> None:
    mesh = state.mesh(event.run, event.mesh)
    if mesh is None:
        return
    mesh.hosts.discard(event.host)
    if mesh.hosts:
        return
    run = state.runs.get(event.run)
    if run is None or run.meshes.pop(event.mesh, None) is None:
        state.kept = {name: kept for name, kept in state.kept.items() if kept.mesh is not mesh}


def _keep_mesh(state: HeadState, event: MeshWasKept) -> None:
    if event.name not in state.kept:
        run = state.runs.get(event.run)
        mesh = None if run is None else run.meshes.pop(event.mesh, None)
        mesh = mesh or MeshState(_NO_PEER, set())
        state.kept[event.name] = KeptState(event.run, event.mesh, event.num_ranks, mesh)
    state.kept[event.name].mesh.hosts.update(event.hosts)


def _change_proc(state: HeadState, event: ProcStarted | ProcStopped | ProcGone) -> None:
    proc = event.proc
    mesh = state.mesh(proc.run, proc.mesh)
    if mesh is None:
        return
    match event:
        case ProcStarted():
            mesh.alive[proc.rank] = proc.host
        case ProcStopped():
            mesh.suspect.discard(proc.rank)
            if event.stopped and proc.rank in mesh.alive:
                mesh.suspect.add(proc.rank)
        case ProcGone():
            mesh.alive.pop(proc.rank, None)
            mesh.suspect.discard(proc.rank)
