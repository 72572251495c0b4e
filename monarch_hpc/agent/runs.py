"""The head's book of runs and their procs, and what it tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from monarch_hpc.agent.link import Link
from monarch_hpc.agent.rations import Allowance, cost_bytes
from monarch_hpc.agent.seats import Seats
from monarch_hpc.wire.messages import OpenRun, Output, ProcEnded, SpawnFailed, StatusReport

__all__ = ["Mesh", "Run", "report"]

_OUTPUT_BYTES = 4 << 20
"""In a second, output of all procs of a run for its program, which reads it beside its own work: so much costs it a
tenth of a core. A terminal shows less."""

_FEW_BYTES = 4 << 10
"""So little at a time passes all the same: who prints little is not to suffer from those that print without end."""


@dataclass(slots=True)
class Mesh:
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
    """

    opened: OpenRun
    opened_s: float
    epoch: int
    owner: Link | None = None
    members: list[Link] = field(default_factory=list)
    meshes: dict[int, Mesh] = field(default_factory=dict)
    closing: set[int] | None = None
    dropped: dict[tuple[int, int, int, str], int] = field(default_factory=dict)
    links: dict[Link, list[dict[str, object]]] = field(default_factory=dict)
    _allowance: Allowance = field(init=False)

    def __post_init__(self) -> None:
        self._allowance = Allowance(_OUTPUT_BYTES, self.opened_s)

    def pass_on(self, output: Output, now_s: float, *, crowded: bool) -> Output | None:
        """Return what goes to the program, with the number of lines left out before it; None if it is left out too."""
        key = output.mesh, output.rank, output.host, output.stream
        cost = cost_bytes(len(output.lines), sum(map(len, output.lines)))
        if crowded or (cost > _FEW_BYTES and not self._allowance.take(cost, now_s)):
            self.dropped[key] = self.dropped.get(key, 0) + output.dropped + len(output.lines)
            return None
        return replace(output, dropped=output.dropped + self.dropped.pop(key, 0))

    def left_out(self, ended: SpawnFailed | ProcEnded) -> list[Output]:
        """Return what the program has not heard yet of lines left out of a proc that is over."""
        where = ended.mesh, ended.rank, ended.host
        return [
            Output(self.opened.run, *where, stream, [], num_lines)
            for stream in ("out", "err")
            if (num_lines := self.dropped.pop((*where, stream), 0))
        ]


def report(seats: Seats, runs: Mapping[str, Run], now_s: float) -> StatusReport:
    """What `monarch-hpc status` shows."""
    hosts: list[dict[str, object]] = [
        {
            "rank": seat.entry.rank,
            "name": seat.entry.name,
            "state": "lost" if seat.link is None else seat.life.value,
            "problem": seat.problem or seat.cause,
            "cpus": len(seat.entry.cpus),
            "gpus": seat.entry.gpus,
            "memory_bytes": seat.entry.memory_bytes,
            "addresses": seat.entry.addresses,
            "fabric": "" if seat.link is None else seat.link.fabric,
            "why": "" if seat.link is None else seat.link.why,
            "pid": seat.entry.pid,
            "procs": sum(
                host == seat.entry.rank
                for run in runs.values()
                for mesh in run.meshes.values()
                for host in mesh.alive.values()
            ),
        }
        for seat in seats.all()
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
                {"mesh": number, "rank": rank, "host": seats.name(mesh.alive[rank])}
                for number, mesh in run.meshes.items()
                for rank in sorted(mesh.suspect)
            ],
            "links": [link for links in run.links.values() for link in links],
            "state": "running" if run.closing is None else "closing",
        }
        for name, run in runs.items()
    ]
    return StatusReport(hosts, documents)
