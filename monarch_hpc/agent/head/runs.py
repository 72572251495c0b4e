"""The head's book of runs and their procs, and what it tells of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from monarch_hpc.agent.head.link import Link
from monarch_hpc.agent.head.roster import HostRoster
from monarch_hpc.agent.output.rate_limit import TokenBucket, cost_bytes
from monarch_hpc.telemetry.observer import Witness
from monarch_hpc.wire.calls import ProcCalls, Recording
from monarch_hpc.wire.messages import OpenRun, Output, ProcEnded, RunLinks, SpawnFailed, StatusReport

__all__ = ["OpenWitness", "Run", "RunMesh", "report"]

OpenWitness = Callable[[Recording], Witness | None]

_OUTPUT_BYTES = 4 << 20
"""In a second, output of all procs of a run for its program, which reads it beside its own work: so much costs it a
tenth of a core. A terminal shows less."""

_TITLE_CHARS = 1000
"""What is kept of a program's command line, which may have two megabytes: all runs go into one answer to `status`."""

_FEW_BYTES = 4 << 10
"""So little at a time passes all the same: who prints little is not to suffer from those that print without end."""


@dataclass(slots=True)
class RunMesh:
    """One mesh of procs.

    Attributes:
        link: who asked for it.
        alive: rank of a proc -> its host.
        suspect: ranks of those that a signal has stopped.
    """

    link: Link
    hosts: set[int]
    alive: dict[int, int] = field(default_factory=dict)
    suspect: set[int] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class Run:
    """One run.

    Attributes:
        epoch: grows when another owner takes the run over.
        closing: hosts that have not said that nothing is left; None while the run goes on.
        dropped: lines left out, by mesh, rank, host and stream.
        links: what each member said of the fabrics to its procs, see `RunLinks`.
        recordings: what each member said of its records; *witnesses* reads those that are on this machine.
        spoken_for: members for which the run's owner answers what they do.
    """

    opened: OpenRun
    opened_s: float
    epoch: int
    open_witness: OpenWitness
    owner: Link | None = None
    members: list[Link] = field(default_factory=list)
    meshes: dict[int, RunMesh] = field(default_factory=dict)
    closing: set[int] | None = None
    dropped: dict[tuple[int, int, int, str], int] = field(default_factory=dict)
    links: dict[Link, list[dict[str, object]]] = field(default_factory=dict)
    recordings: dict[Link, Recording] = field(default_factory=dict)
    witnesses: dict[Link, Witness] = field(default_factory=dict)
    reported_by_owner: set[Link] = field(default_factory=set)
    _bucket: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.opened = _shorten(self.opened)
        self._bucket = TokenBucket(_OUTPUT_BYTES, self.opened_s)

    def note(self, link: Link, news: RunLinks | Recording) -> None:
        """Take note of what a member says of itself, or the owner of another member."""
        if isinstance(news, RunLinks):
            self.links[link] = news.links
            return
        for other, known in self.recordings.items():
            if other is not link and known == news:
                self.reported_by_owner.add(other)
                return
        self.recordings[link] = news
        if (witness := self.open_witness(news)) is not None:
            self.witnesses[link] = witness
        elif self.owner is not None and self.owner is not link:
            self.owner.send(news)

    def take_over(self, owner: Link, opened: OpenRun) -> None:
        """Somebody owns the run from now on, and may be on the machine of a member that nobody here can look at."""
        self.owner = owner
        self.opened = _shorten(opened)
        self.reported_by_owner.clear()
        for link, recording in self.recordings.items():
            if link is not owner and link not in self.witnesses:
                owner.send(recording)

    def forget(self, link: Link) -> None:
        """A member is gone."""
        self.members.remove(link)
        self.links.pop(link, None)
        self.recordings.pop(link, None)
        self.reported_by_owner.discard(link)
        if (witness := self.witnesses.pop(link, None)) is not None:
            witness.close()

    def close(self) -> None:
        """The run is over."""
        for witness in self.witnesses.values():
            witness.close()

    def unobserved(self) -> list[Link]:
        """Members that only they themselves can tell what they do."""
        return [link for link in self.members if link not in self.witnesses and link not in self.reported_by_owner]

    def observed(self) -> list[ProcCalls]:
        """What those members do whose memory can be read here."""
        return [calls for witness in self.witnesses.values() for calls in witness.report()]

    def pass_on(self, output: Output, now_s: float, *, backlogged: bool) -> Output | None:
        """Return what goes to the program, with the number of lines left out before it; None if it is left out too."""
        key = output.mesh, output.rank, output.host, output.stream
        cost = cost_bytes(len(output.lines), sum(map(len, output.lines)))
        if backlogged or (cost > _FEW_BYTES and not self._bucket.take(cost, now_s)):
            self.dropped[key] = self.dropped.get(key, 0) + output.dropped + len(output.lines)
            return None
        return replace(output, dropped=output.dropped + self.dropped.pop(key, 0))

    def take_dropped(self, ended: SpawnFailed | ProcEnded) -> list[Output]:
        """Return what the program has not heard yet of lines left out of a proc that is over."""
        where = ended.mesh, ended.rank, ended.host
        return [
            Output(self.opened.run, *where, stream, [], num_lines)
            for stream in ("out", "err")
            if (num_lines := self.dropped.pop((*where, stream), 0))
        ]


def _shorten(opened: OpenRun) -> OpenRun:
    title, host = opened.title, opened.controller_host
    return replace(opened, title=title[:_TITLE_CHARS], controller_host=host[:_TITLE_CHARS])


def report(roster: HostRoster, runs: Mapping[str, Run], now_s: float) -> StatusReport:
    """What `monarch-hpc status` shows."""
    hosts: list[dict[str, object]] = [
        {
            "rank": slot.entry.rank,
            "name": slot.entry.name,
            "state": "lost" if slot.link is None else slot.life.value,
            "problem": slot.problem or slot.cause,
            "cpus": len(slot.entry.cpus),
            "gpus": slot.entry.gpus,
            "memory_bytes": slot.entry.memory_bytes,
            "addresses": slot.entry.addresses,
            "fabric": "" if slot.link is None else slot.link.fabric,
            "why": "" if slot.link is None else slot.link.why,
            "pid": slot.entry.pid,
            "procs": sum(
                host == slot.entry.rank
                for run in runs.values()
                for mesh in run.meshes.values()
                for host in mesh.alive.values()
            ),
        }
        for slot in roster.all()
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
                {"mesh": number, "rank": rank, "host": roster.name(mesh.alive[rank])}
                for number, mesh in run.meshes.items()
                for rank in sorted(mesh.suspect)
            ],
            "links": [link for links in run.links.values() for link in links],
            "state": "running" if run.closing is None else "closing",
        }
        for name, run in runs.items()
    ]
    return StatusReport(hosts, documents)
