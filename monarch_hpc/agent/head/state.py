"""The head's state: plain data, changed by events only.

`apply` depends on nothing but its arguments, so that the state can be tested, and rebuilt from its events.
"""

from __future__ import annotations

from dataclasses import field, replace

from monarch_hpc.agent.head.events import (
    DeadlinePassed,
    Event,
    HostDrained,
    HostEmptied,
    HostFreed,
    HostGone,
    HostJoined,
    HostLifeChanged,
    HostLossExplained,
    HostMissed,
    HostReturnChanged,
    MeshLeftHost,
    MeshRequested,
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

__all__ = ["HeadState", "MeshState", "RunState", "apply"]

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
class HeadState:
    """The state of a head.

    Attributes:
        rank: rank of the head's host.
        term: number of the head's term.
        num_attached: number of the last member, see `core.ids.first_member`: requests to open or attach to a run.
        past_deadline: whether the head has stopped waiting for agents.
        shutting_down: hosts that have not reported how many processes are left; None before the end.
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

    def mesh(self, run: str, mesh: int) -> MeshState | None:
        """The mesh *mesh* of a run, if there is one."""
        found = self.runs.get(run)
        return None if found is None else found.meshes.get(mesh)

    def owns(self, peer: int) -> bool:
        """Tell whether *peer* owns a run."""
        return any(run.owner == peer for run in self.runs.values())


def apply(state: HeadState, event: Event) -> None:
    """Change *state* by *event*; events about runs and meshes that have ended change nothing."""
    match event:
        case HostJoined():
            state.roster.add(event.peer, event.entry, event.problem)
        case HostLifeChanged():
            state.roster.set_life(event.rank, event.life)
        case HostGone():
            state.roster.lose(event.rank, event.cause)
            for name, run in list(state.runs.items()):
                _empty_host(run, event.rank)
                _leave_host(state, name, event.rank)
            if state.shutting_down is not None:
                state.shutting_down.discard(event.rank)
        case HostLossExplained():
            state.roster.explain(event.rank, event.kind, event.cause)
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
        mesh.alive = {rank: on for rank, on in mesh.alive.items() if on != host}
        mesh.suspect &= mesh.alive.keys()
        mesh.hosts.discard(host)
    run.emptied.update(number for number, mesh in run.meshes.items() if not mesh.hosts)
    run.meshes = {number: mesh for number, mesh in run.meshes.items() if mesh.hosts}


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
    if not mesh.hosts:
        del state.runs[event.run].meshes[event.mesh]


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
