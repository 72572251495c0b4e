"""Rows of actors, meshes, endpoints, waits and failures, of processes with known records."""

from __future__ import annotations

from monarch_hpc.telemetry.views.members import actors_of, endpoints_of, failures_of, meshes_of, waits_of
from monarch_hpc.wire.tables.calls import (
    ActorSeen,
    EndpointCount,
    ProcCalls,
    RunningCall,
    Scene,
    SentCall,
    Wait,
)
from monarch_hpc.wire.tables.overview import ChangeRow, FailureRow, MeshRow

NO_SCENE = Scene("", "aa", [], [], [], [], 0, [])
BUSY = Scene(
    "",
    "bb",
    [ActorSeen("7", "trainer", 0, "ready", "", 9.0), ActorSeen("8", "trainer", 1, "failed", "KeyError", 2.0)],
    [RunningCall("7", "step", 1, "cc", "n0", 0.5, 0.1)],
    [Wait("7", [5], 3, "", 0.25), Wait("0", [], 0, "a barrier", 0.0)],
    [SentCall(5, "7", 1, "dd", "n2", "9", "store", "get", 0.25)],
    1,
    [EndpointCount("trainer", "step", 4, 1, 2.0, 1.5, [0, 4], 0.5, 0.25, [4])],
)
PROCESSES = [
    ProcCalls("run", 3, 0, "n1", 71, "ready", "", BUSY),
    ProcCalls("run", 3, 1, "n2", 72, "ended", "signal 9", NO_SCENE),
    ProcCalls("run", -1, 0, "login", 7, "ready", "", NO_SCENE),
]


def test_actors_say_what_they_run() -> None:
    first, second = actors_of(PROCESSES)
    assert (first.rank, first.actor, first.actor_rank, first.actor_id, first.endpoint, first.runs_s) == (
        *(0, "trainer", 0, "7"),
        *("step", 0.5),
    )
    assert (second.actor_state, second.actor_cause, second.endpoint, second.incarnation) == (
        *("failed", "KeyError"),
        *("", "bb"),
    )


def test_meshes_are_those_of_their_members() -> None:
    assert list(meshes_of(PROCESSES)) == [
        MeshRow("run", 3, "actors", "trainer", 2, 1, 1),
        MeshRow("run", 3, "procs", "", 2, 1, 2),
    ]


def test_endpoints_have_exact_counts_and_estimated_quantiles() -> None:
    (row,) = endpoints_of(PROCESSES)
    assert (row.actor, row.endpoint, row.calls, row.failed, row.total_s, row.longest_s) == (
        *("trainer", "step", 4, 1),
        *(2.0, 1.5),
    )
    assert 256e-9 <= row.p50_s <= row.p99_s <= 512e-9
    assert (row.queued_s, row.queued_longest_s) == (0.5, 0.25)


def test_waits_name_the_first_call() -> None:
    call, other = waits_of(PROCESSES)
    assert (call.actor, call.calls, call.endpoint, call.target, call.target_host, call.waits_s) == (
        *("trainer", 3, "get", "store", "n2"),
        0.25,
    )
    assert (other.actor, other.actor_rank, other.calls, other.what) == ("", -1, 0, "a barrier")


def test_failures_are_those_of_hosts_procs_and_actors() -> None:
    changes = [
        ChangeRow(50.0, "proc died", "rank 1 of mesh 3 of run run on n2", "killed", "signal 9"),
        ChangeRow(60.0, "lost", "n4", "lost", "no heartbeat"),
        ChangeRow(61.0, "ends", "", "", "its release was requested"),
        ChangeRow(62.0, "suspect", "n5", "", "it does not answer"),
    ]
    assert failures_of(PROCESSES, changes, 100.0) == [
        FailureRow(98.0, "actor failed", "run", 3, 0, "n1", "trainer", "", "KeyError"),
        FailureRow(60.0, "lost", "", -1, -1, "n4", "", "lost", "no heartbeat"),
        FailureRow(50.0, "proc died", "run", 3, 1, "n2", "", "killed", "signal 9"),
    ]
