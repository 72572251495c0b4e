"""The head's book of runs and their procs, and what it tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monarch_hpc.agent.link import Link
from monarch_hpc.agent.seats import Seats
from monarch_hpc.wire.messages import OpenRun, StatusReport

__all__ = ["Mesh", "Run", "report"]


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
        dropped: lines left out, by mesh, rank and stream.
        links: what each member said of the fabrics to its procs, see `RunLinks`.
    """

    opened: OpenRun
    opened_s: float
    epoch: int
    owner: Link | None = None
    members: list[Link] = field(default_factory=list)
    meshes: dict[int, Mesh] = field(default_factory=dict)
    closing: set[int] | None = None
    dropped: dict[tuple[int, int, str], int] = field(default_factory=dict)
    links: dict[Link, list[dict[str, object]]] = field(default_factory=dict)


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
