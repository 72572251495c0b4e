"""The volatile part of a run at the head: its members' reports and dropped output; and the report for `status`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace

from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.request_checks import problem_of_opening
from monarch_hpc.agent.head.state import HeadState, RunState
from monarch_hpc.agent.output.rate_limit import TokenBucket, cost_bytes
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.telemetry.observer import RecordObserver
from monarch_hpc.wire.control.allocation import StatusReport
from monarch_hpc.wire.control.message import Message
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.control.procs import ProcEnded, SpawnFailed, SpawnProcs
from monarch_hpc.wire.control.questions import Ask, Portion
from monarch_hpc.wire.control.runs import OpenRun, Recording, RunLinks, RunOpened
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.tables.answer import answer

__all__ = ["OpenObserver", "RunPeers", "opened", "problem_of_mesh", "refusal", "report"]

OpenObserver = Callable[[Recording], RecordObserver | None]

_OUTPUT_BYTES = 4 << 20
"""Bytes per second of output of all procs of a run to its program. Reading that much costs the program, which has
other work, a tenth of a core; a terminal shows less."""

_FEW_BYTES = 4 << 10
"""Messages up to this size always pass, so that a proc that prints little does not suffer from floods of others."""


@dataclass(slots=True, eq=False)
class RunPeers:
    """Reports of a run's members about themselves, and its dropped output: of use only while the head lives.

    Attributes:
        dropped: number of dropped lines by proc and stream.
        links: each member's fabrics to its procs, see `RunLinks`.
        recordings: where each member's records are; *observers* read those on this machine.
        reported_by_owner: members whose calls the run's owner reports.
    """

    run: str
    opened_s: float
    open_observer: OpenObserver
    dropped: dict[tuple[ProcKey, str], int] = field(default_factory=dict)
    links: dict[Link, list[dict[str, object]]] = field(default_factory=dict)
    recordings: dict[Link, Recording] = field(default_factory=dict)
    observers: dict[Link, RecordObserver] = field(default_factory=dict)
    reported_by_owner: set[Link] = field(default_factory=set)
    _bucket: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self._bucket = TokenBucket(_OUTPUT_BYTES, self.opened_s)

    def note(self, link: Link, news: RunLinks | Recording, owner: Link | None) -> None:
        """Store a member's report about itself; or note that its sender, the owner, reads another member's records.

        Args:
            owner: the run's owner, if there is one.
        """
        if isinstance(news, RunLinks):
            self.links[link] = news.links
            return
        for other, known in self.recordings.items():
            if other is not link and known == news:
                self.reported_by_owner.add(other)
                return
        self.recordings[link] = news
        if (observer := self.open_observer(news)) is not None:
            self.observers[link] = observer
        elif owner is not None and owner is not link:
            owner.send(news)

    def on_owner(self, owner: Link) -> None:
        """Ask a new owner to read the records of members on its machine that cannot be read from here."""
        self.reported_by_owner.clear()
        for link, recording in self.recordings.items():
            if link is not owner and link not in self.observers:
                owner.send(recording)

    def forget(self, link: Link) -> None:
        """Drop the reports of a member."""
        self.links.pop(link, None)
        self.recordings.pop(link, None)
        self.reported_by_owner.discard(link)
        if (observer := self.observers.pop(link, None)) is not None:
            observer.close()

    def close(self) -> None:
        """Stop reading the members' records."""
        for observer in self.observers.values():
            observer.close()

    def must_be_asked(self, link: Link) -> bool:
        """Tell whether a member's calls can only be learned by asking it."""
        return link not in self.observers and link not in self.reported_by_owner

    def observed(self, question: Ask) -> list[Portion]:
        """The rows of the members whose memory can be read here."""
        source = f"the program of run {self.run}"
        return [answer(question, source, observer.sources) for observer in self.observers.values()]

    def deliver(self, link: Link, message: Message, now_s: float) -> None:
        """Send an agent's report about a mesh to the program that requested it; its output may be dropped."""
        if isinstance(message, SpawnFailed | ProcEnded):
            for output in self.take_dropped(message):
                link.send(output)
        elif isinstance(message, Output):
            passed = self.pass_on(message, now_s, backlogged=link.backlogged)
            if passed is None:
                return
            message = passed
        link.send(message)

    def pass_on(self, output: Output, now_s: float, *, backlogged: bool) -> Output | None:
        """Return *output* for the program, with the number of lines dropped before it; None if it is dropped, too."""
        key = output.proc, output.stream
        cost = cost_bytes(len(output.lines), sum(map(len, output.lines)))
        if backlogged or (cost > _FEW_BYTES and not self._bucket.take(cost, now_s)):
            self.dropped[key] = self.dropped.get(key, 0) + output.dropped + len(output.lines)
            return None
        return replace(output, dropped=output.dropped + self.dropped.pop(key, 0))

    def take_dropped(self, ended: SpawnFailed | ProcEnded) -> list[Output]:
        """Return reports of the lines of an ended proc that were dropped and not reported yet."""
        return [
            Output(ended.proc, stream, [], num_lines)
            for stream in ("out", "err")
            if (num_lines := self.dropped.pop((ended.proc, stream), 0))
        ]


def refusal(state: HeadState, message: OpenRun) -> str:
    """Return why a run cannot be opened, or attached to; empty if it can."""
    run = state.runs.get(message.run)
    if state.shutting_down is not None:
        return "the allocation is being released"
    if run is not None and run.closing is not None:
        return f"run {message.run} is over"
    return problem_of_opening(message)


def problem_of_mesh(run: RunState | None, order: SpawnProcs, *, member: bool) -> str:
    """Return why procs cannot be started in a run; empty if they can. *member*: its sender is a member of the run."""
    if run is None or not member or run.closing is not None:
        return "the run is over"
    if run.has_mesh(order.mesh) is (order.restarts > 0 or order.again):
        return ""
    known = "exists already" if run.has_mesh(order.mesh) else "does not exist"
    return f"mesh {order.mesh} {known} in this run"


def opened(state: HeadState, message: OpenRun) -> RunOpened:
    """Return the answer to the last peer that opened a run, or attached to it."""
    member = message.member or state.num_attached
    return RunOpened(message.run, state.runs[message.run].epoch, member, state.roster.hosts())


def report(
    state: HeadState, links: Mapping[int, Link], peers: Mapping[str, RunPeers], now_s: float, idle_left_s: float
) -> StatusReport:
    """Return the report that `monarch-hpc status` shows.

    Args:
        links: peer -> link.
        peers: run -> its members' reports.
        idle_left_s: see `StatusReport`.
    """
    hosts: list[dict[str, object]] = [
        {
            "rank": slot.entry.rank,
            "name": slot.entry.name,
            "group": slot.entry.group,
            "job_id": slot.entry.job_id,
            "head": slot.entry.rank == state.rank,
            "state": "lost" if slot.peer is None else slot.life.value,
            "problem": slot.problem or slot.cause,
            "drained": slot.drained,
            "returning": slot.returning,
            "cpus": len(slot.entry.cpus),
            "gpus": slot.entry.gpus,
            "memory_bytes": slot.entry.memory_bytes,
            "addresses": slot.entry.addresses,
            "fabric": "" if slot.peer is None else links[slot.peer].fabric,
            "why": "" if slot.peer is None else links[slot.peer].why,
            "pid": slot.entry.pid,
            "procs": sum(host == slot.entry.rank for mesh in state.meshes() for host in mesh.alive.values()),
        }
        for slot in state.roster.all()
    ]
    documents: list[dict[str, object]] = [
        {
            "run": name,
            "title": run.opened.title,
            "controller_host": run.opened.controller_host,
            "pid": run.opened.pid,
            "age_s": round(now_s - run.opened_s, 1),
            "procs": sum(len(mesh.alive) for mesh in run.meshes.values()),
            "suspect": [
                {"mesh": number, "rank": rank, "host": state.roster.name(mesh.alive[rank])}
                for number, mesh in run.meshes.items()
                for rank in sorted(mesh.suspect)
            ],
            "links": [link for reported in peers[name].links.values() for link in reported],
            "state": _state_of(run),
            "epoch": run.epoch,
        }
        for name, run in state.runs.items()
    ]
    kept: list[dict[str, object]] = [
        {
            "name": name,
            "run": one.run,
            "mesh": one.number,
            "procs": one.num_ranks,
            "alive": len(one.mesh.alive),
            "hosts": sorted({state.roster.name(host) for host in one.mesh.alive.values()}),
            "programs": len(one.users),
        }
        for name, one in sorted(state.kept.items())
    ]
    return StatusReport(hosts, documents, idle_left_s, kept)


def _state_of(run: RunState) -> str:
    if run.closing is not None:
        return "closing"
    return "held" if run.owner is not None and run.owner not in run.members else "running"
