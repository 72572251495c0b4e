"""Kept meshes: procs that stay when their run ends, the programs that use them, and their end."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import field

from monarch_hpc.agent.head.events import (
    Event,
    HostGone,
    HostLossExplained,
    KeptEnded,
    KeptLeft,
    KeptUsed,
    MeshLeftHost,
    MeshWasKept,
)
from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.peers import HeadPeers
from monarch_hpc.agent.head.state import HeadState
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.death import DeathKind
from monarch_hpc.core.failpoints import failpoint
from monarch_hpc.core.logger import Logger
from monarch_hpc.wire.control.kept import (
    KeepMesh,
    KeepProcs,
    KeptOpened,
    KeptStopped,
    MeshKept,
    OpenKept,
    ProcsKept,
    StopKept,
)
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.procs import ProcEnded, ProcLife, ProcReady, StopProcs
from monarch_hpc.wire.control.refusal import refuse

__all__ = ["KeptMeshes", "KeptRequest"]

KeptRequest = KeepMesh | OpenKept | StopKept
"""Requests of programs and tools about kept meshes."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""Names are words of commands."""

_MAX_GRACE_S = 3600.0

_Place = tuple[str, int]  # run and mesh

_log = Logger(__name__)


@dataclass(slots=True, eq=False)
class _Awaiting:
    """What waits for agents' reports about a mesh.

    Attributes:
        hosts: those that have not reported that its procs stay.
        keeper: the program that asked for that, and its request.
        stoppers: who waits for its end, and their requests.
        reports: the start of each proc by rank, and its end if it has ended.
        lost: ranks of the procs that have ended with their hosts.
    """

    hosts: set[int] = field(default_factory=set)
    keeper: tuple[Link, KeepMesh] | None = None
    stoppers: list[tuple[Link, StopKept]] = field(default_factory=list)
    reports: dict[int, tuple[ProcReady, ProcEnded | None]] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def lose(self, host: int, cause: str, kind: DeathKind) -> None:
        """Record the end of the procs of a lost host, or what more is known of it."""
        for rank, (ready, ended) in self.reports.items():
            if ready.proc.host == host and (ended is None or rank in self.lost):
                self.lost.add(rank)
                self.reports[rank] = ready, ProcEnded(ready.proc, False, cause, [], kind.value)


class KeptMeshes:
    """Carries out requests about kept meshes. It does no I/O.

    Args:
        apply: changes *state* by an event.
        send: sends a message to the agents of some hosts.
    """

    def __init__(
        self,
        state: HeadState,
        peers: HeadPeers,
        apply: Callable[[Event], None],
        send: Callable[[Iterable[int], Message], None],
    ) -> None:
        self._state = state
        self._peers = peers
        self._apply = apply
        self._send = send
        self._awaiting: dict[_Place, _Awaiting] = {}
        self._early: list[tuple[Link, OpenKept]] = []  # for meshes of which agents have not reported all

    # ---- programs and tools ----

    def on_client(self, link: Link, request: KeptRequest) -> None:
        """Carry out a request, or refuse it."""
        match request:
            case KeepMesh():
                problem = self._keep(link, request)
            case OpenKept():
                problem = self._open(link, request)
            case StopKept():
                problem = self._stop(link, request)
        if problem:
            link.send(refuse(request, problem))

    def on_client_lost(self, link: Link) -> None:
        """Handle the loss of a program: the meshes that it has used or kept stay."""
        peer = self._peers.number(link)
        for name, kept in self._state.kept.items():
            if peer in kept.users:
                self._apply(KeptLeft(name, peer))
        self._early = [early for early in self._early if early[0] is not link]
        for awaiting in self._awaiting.values():
            awaiting.stoppers = [stopper for stopper in awaiting.stoppers if stopper[0] is not link]
            if awaiting.keeper is not None and awaiting.keeper[0] is link:
                awaiting.keeper = None

    def _keep(self, link: Link, request: KeepMesh) -> str:
        run, peer = self._state.runs.get(request.run), self._peers.number(link)
        mesh = None if run is None else run.meshes.get(request.mesh)
        if not _NAME.fullmatch(request.name):
            return f"{request.name!r:.80} is no name of a kept mesh: 1 to 64 letters, digits, '.', '_' or '-' are"
        if self._state.shutting_down is not None:
            return "the allocation is being released"
        known = self._state.kept.get(request.name)
        if known is not None and (known.run, known.number) == (request.run, request.mesh):
            self._apply(KeptUsed(request.name, self._peers.add(link)))  # the head before could not answer
            link.send(MeshKept(request.run, request.mesh, request.number))
            return ""
        if known is not None:
            return (
                f"a kept mesh has the name {request.name} already, of run {known.run}: "
                f"'monarch-hpc mesh stop {request.name}' ends it"
            )
        if run is None or run.closing is not None or mesh is None or mesh.peer != peer or request.num_ranks < 1:
            return "its procs were stopped, or are another program's"
        hosts = mesh.hosts & self._state.roster.linked()
        self._apply(MeshWasKept(request.name, request.run, request.mesh, request.num_ranks))
        self._apply(KeptUsed(request.name, peer))
        self._awaiting[request.run, request.mesh] = _Awaiting(set(hosts), (link, request))
        _log.info("run %s: mesh %d stays, as %s", request.run, request.mesh, request.name)
        failpoint("head.keep")
        self._send(hosts, KeepProcs(request.run, request.mesh, request.name, request.num_ranks))
        return ""

    def _open(self, link: Link, request: OpenKept) -> str:
        name = request.name
        kept = self._state.kept.get(name)
        if kept is None:
            names = ", ".join(sorted(self._state.kept)) or "none"
            return f"no kept mesh has the name {name!r:.80}; there are: {names}"
        awaiting = self._awaiting.setdefault((kept.run, kept.number), _Awaiting())
        if awaiting.stoppers:
            return f"the kept mesh {name} is being stopped"
        if awaiting.hosts:
            self._early.append((link, request))
            return ""
        peer = self._peers.add(link)
        if peer not in kept.users:
            self._apply(KeptUsed(name, peer))
        for ready, ended in awaiting.reports.values():
            host = ready.proc.host
            if ended is None and host not in kept.mesh.hosts:
                cause = f"{self._state.roster.name(host)}: {self._state.roster.absence(host)}"
                ended = ProcEnded(ready.proc, False, cause, [], DeathKind.UNKNOWN.value)
            link.send(ready)
            if ended is not None:
                link.send(ended)
        link.send(KeptOpened(kept.run, kept.number, name, kept.num_ranks, request.number))
        return ""

    def _stop(self, link: Link, request: StopKept) -> str:
        kept = self._state.kept.get(request.name)
        if kept is None:
            return f"no kept mesh has the name {request.name!r:.80}"
        if not 0.0 <= request.grace_s <= _MAX_GRACE_S:
            return f"a grace of {request.grace_s:g} s: 0 to {_MAX_GRACE_S:g} s can be given"
        awaiting = self._awaiting.setdefault((kept.run, kept.number), _Awaiting())
        self._peers.add(link)
        awaiting.stoppers.append((link, request))
        hosts = sorted(kept.mesh.hosts & self._state.roster.linked())
        self._send(hosts, StopProcs(kept.run, kept.number, hosts, request.grace_s))
        if not hosts:
            self._apply(KeptEnded(request.name))
        return ""

    # ---- agents ----

    def note(self, message: Message) -> None:
        """Keep an agent's report about a proc for programs that come, and pass it to those that use its mesh."""
        if not isinstance(message, ProcReady | ProcEnded | ProcLife):
            return
        place = message.run, message.mesh
        kept = self._state.kept_mesh(*place)
        if kept is None:
            return
        reports, rank = self._awaiting.setdefault(place, _Awaiting()).reports, message.proc.rank
        if isinstance(message, ProcReady):
            reports[rank] = message, None
            self._awaiting[place].lost.discard(rank)
            return
        if isinstance(message, ProcEnded) and rank in reports:
            reports[rank] = reports[rank][0], message
        for link in self._peers.known(user for user in kept.users if user != kept.mesh.peer):
            link.send(message)

    def on_kept(self, message: ProcsKept) -> None:
        """Handle an agent's report that it keeps the procs of a mesh; one of an earlier term is news for this head."""
        place = message.run, message.mesh
        awaiting = self._awaiting.setdefault(place, _Awaiting())
        awaiting.hosts.discard(message.host)
        self._apply(MeshWasKept(message.name, *place, message.num_ranks, (message.host,)))

    def on_event(self, event: Event) -> None:
        """Answer whoever waits for that event, and note why hosts are lost: another agent may soon be there."""
        if isinstance(event, HostGone | HostLossExplained):
            kind = DeathKind.UNKNOWN if isinstance(event, HostGone) else event.kind
            cause = f"{self._state.roster.name(event.rank)}: the host is lost: {event.cause}"
            for awaiting in self._awaiting.values():
                awaiting.lose(event.rank, cause, kind)
        if isinstance(event, MeshWasKept | HostGone | MeshLeftHost | KeptEnded):
            self._settle()

    def _settle(self) -> None:
        for place, awaiting in list(self._awaiting.items()):
            kept = self._state.kept_mesh(*place)
            keeper, request = awaiting.keeper or (None, None)
            awaiting.hosts &= set() if kept is None else kept.mesh.hosts
            if keeper is not None and request is not None and not awaiting.hosts:
                awaiting.keeper = None
                failpoint("head.kept")
                keeper.send(MeshKept(request.run, request.mesh, request.number))
                early, self._early = self._early, []
                for link, opening in early:
                    self.on_client(link, opening)
            if kept is None:
                del self._awaiting[place]
                for link, stop in awaiting.stoppers:
                    link.send(KeptStopped(stop.name, stop.number))
