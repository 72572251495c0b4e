"""Rows of actors, meshes, endpoints, waits and failures, made of what processes do at the moment. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from monarch_hpc.telemetry.histogram import quantile
from monarch_hpc.wire.tables.calls import ProcCalls
from monarch_hpc.wire.tables.overview import ActorRow, ChangeRow, EndpointRow, FailureRow, MeshRow, WaitRow

__all__ = ["actors_of", "endpoints_of", "failures_of", "meshes_of", "waits_of"]

_FATAL = ("lost", "proc died", "ends")
_PROC = re.compile(r"rank (\d+) of mesh (\d+) of run (\S+) on (\S+)")


def actors_of(processes: Iterable[ProcCalls]) -> Iterator[ActorRow]:
    """Yield the actors of processes."""
    for one in processes:
        running = {call.actor: call for call in one.scene.running}
        for actor in one.scene.actors:
            call = running.get(actor.actor)
            yield ActorRow(
                *one.first_columns,
                incarnation=one.scene.incarnation,
                actor=actor.name,
                actor_rank=actor.rank,
                actor_id=actor.actor,
                actor_state=actor.state,
                actor_cause=actor.cause,
                age_s=actor.age_s,
                endpoint="" if call is None else call.endpoint,
                runs_s=0.0 if call is None else call.age_s,
            )


def meshes_of(processes: Iterable[ProcCalls]) -> Iterator[MeshRow]:
    """Yield the meshes that processes and their actors are members of."""
    members: dict[tuple[str, int, str, str], list[tuple[bool, str]]] = {}
    for one in processes:
        if one.mesh >= 0:
            members.setdefault((one.run, one.mesh, "procs", ""), []).append((one.state == "ready", one.host))
        for actor in one.scene.actors:
            ready = one.state != "ended" and actor.state == "ready"
            members.setdefault((one.run, one.mesh, "actors", actor.name), []).append((ready, one.host))
    for (run, mesh, kind, name), some in sorted(members.items()):
        yield MeshRow(
            run, mesh, kind, name, len(some), sum(ready for ready, _ in some), len({host for _, host in some})
        )


def endpoints_of(processes: Iterable[ProcCalls]) -> Iterator[EndpointRow]:
    """Yield the counters of the endpoints of processes."""
    for one in processes:
        for count in one.scene.endpoints:
            yield EndpointRow(
                *one.first_columns,
                actor=count.name,
                endpoint=count.endpoint,
                calls=count.num_calls,
                failed=count.num_failed,
                total_s=count.total_s,
                longest_s=count.longest_s,
                p50_s=quantile(count.ran, 0.5, count.longest_s),
                p99_s=quantile(count.ran, 0.99, count.longest_s),
                queued_s=count.queued_total_s,
                queued_longest_s=count.queued_longest_s,
                queued_p99_s=quantile(count.queued, 0.99, count.queued_longest_s),
            )


def waits_of(processes: Iterable[ProcCalls]) -> Iterator[WaitRow]:
    """Yield the waits of the threads and tasks of processes."""
    for one in processes:
        actors = {actor.actor: actor for actor in one.scene.actors}
        sent = {call.call: call for call in one.scene.sent}
        for wait in one.scene.waits:
            actor = actors.get(wait.actor)
            call = next((sent[number] for number in wait.calls if number in sent), None)
            yield WaitRow(
                *one.first_columns,
                actor="" if actor is None else actor.name,
                actor_rank=-1 if actor is None else actor.rank,
                calls=wait.num_calls,
                endpoint="" if call is None else call.endpoint,
                target="" if call is None else call.target_name,
                target_host="" if call is None else call.target_host,
                what=wait.what,
                waits_s=wait.age_s,
            )


def failures_of(processes: Iterable[ProcCalls], changes: Iterable[ChangeRow], now_s: float) -> list[FailureRow]:
    """Return what was lost, died or failed, the latest first.

    Args:
        now_s: Unix time of the answer of the processes.
    """
    found = [
        FailureRow(
            *(round(now_s - actor.age_s, 3), "actor failed", one.run, one.mesh, one.rank, one.host),
            *(actor.name, "", actor.cause),
        )
        for one in processes
        for actor in one.scene.actors
        if actor.state == "failed"
    ]
    for change in changes:
        if change.what not in _FATAL or not change.kind:
            continue
        proc = _PROC.fullmatch(change.subject)
        place = ("", -1, -1, change.subject)
        if proc is not None:
            place = (proc[3], int(proc[2]), int(proc[1]), proc[4])
        found.append(FailureRow(change.t, change.what, *place, "", change.kind, change.cause))
    return sorted(found, key=lambda row: -row.t)
