"""Changes that the head writes down: each with its time and cause, and nothing that nobody would look up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from monarch_hpc.agent.head.changes import HeadChanges
from monarch_hpc.agent.head.events import RunAttached, RunStopping
from monarch_hpc.allocation.changes import CHANGES, HeadChange, parse_change, read_changes, render_change
from monarch_hpc.core.death import Death, DeathKind
from monarch_hpc.supervision import Liveness
from monarch_hpc.wire.control.allocation import DrainHost
from monarch_hpc.wire.control.procs import ProcEnded, ProcReady
from monarch_hpc.wire.control.runs import OpenRun
from monarch_hpc.wire.proc_key import ProcKey
from tests.unit.agent.head.test_head import World, spawn


def test_what_has_become_of_hosts_runs_and_procs(tmp_path: Path) -> None:
    world = World(2, lambda _host, answered: answered(Death(DeathKind.NODE_FAILURE, "Slurm says DOWN")))
    world.join(0, 1)
    client = world.open("1")
    world.head.on_client(client, spawn("1", 9, [0, 1]))
    for host, rank in ((0, 0), (1, 1)):
        world.head.on_agent(world.agents[host], ProcReady(ProcKey("1", 9, rank, host), 100, "7", []))
    world.head.on_agent(world.agents[0], ProcEnded(ProcKey("1", 9, 0, 0), False, "exit code 3", [], "exit"))
    world.head.on_life(world.agents[1], Liveness.SUSPECT)
    world.head.on_life(world.agents[1], Liveness.ALIVE)
    world.head.on_life(world.agents[1], Liveness.DEAD)
    world.head.on_agent_lost(world.agents[1], "no heartbeat")
    first = world.head.state.roster.name(0)
    world.head.on_client(client, DrainHost(first, "fans"))
    world.head.shut_down(1.0, None)
    path = tmp_path / CHANGES
    written: list[bytes] = []
    changes = HeadChanges(written.append, lambda: 7.5)
    for event in world.events:
        changes.add(event)
    path.write_bytes(b"".join(written))
    names = [world.head.state.roster.name(rank) for rank in (0, 1)]
    found = read_changes(tmp_path)
    assert {change.time_s for change in found} == {7.5}
    assert [(change.what, change.subject, change.kind, change.cause) for change in found] == [
        ("joined", names[0], "", ""),
        ("joined", names[1], "", ""),
        ("run opened", "1", "", found[2].cause),
        ("proc died", f"rank 0 of mesh 9 of run 1 on {names[0]}", "exit", "exit code 3"),
        ("suspect", names[1], "", "it does not answer"),
        ("back", names[1], "", "it answers again"),
        ("lost", names[1], "node-failure", "no heartbeat; Slurm says DOWN"),
        ("drained", names[0], "", "fans"),
        ("ends", "", "stopped", "its release was requested"),
    ]


def test_an_owner_that_opens_its_run_again_is_not_told_of_and_the_next_one_is() -> None:
    found: list[str] = []

    def append(line: bytes) -> None:
        change = parse_change(line.rstrip())
        assert change is not None
        found.append(f"{change.what} {change.cause}".strip())

    changes = HeadChanges(append)
    opened = OpenRun("1", "train.py", "login", 0, owner=True, on_loss="hold", hold_s=60.0)
    for peer, opening in (
        (5, opened),
        (5, replace(opened, pid=7)),
        (6, replace(opened, owner=False)),
        (8, replace(opened, title="next.py", takes=1)),
    ):
        changes.add(RunAttached(peer, opening, 0.0))
    changes.add(RunStopping("1"))
    assert found == ["run opened train.py", "run taken over next.py", "run ends"]


def test_a_change_is_read_back_and_anything_else_is_none() -> None:
    change = HeadChange(1.5, "lost", "n1", "network", "a\nb 'ä'")
    assert parse_change(render_change(change)) == change
    for line in (
        b"",
        b"[1, 2]",
        b'[1, "a", "b", "c"',
        b"[monarch-hpc: earlier output]",
        b'["1", "", "", "", ""]',
        b"1",
    ):
        assert parse_change(line) is None
    assert parse_change(b"[" * 100_000) is None
    assert len(render_change(HeadChange(0.0, "lost", "n1", "", "x" * 10_000_000))) < 10_000


def test_all_attempts_and_the_rotated_file_come_in_order(tmp_path: Path) -> None:
    for number, name in ((10, CHANGES), (2, CHANGES), (2, CHANGES + ".old")):
        folder = tmp_path / "attempts" / str(number)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(render_change(HeadChange(0.0, f"{number} {name}", "")) + b"cut o")
    assert [change.what for change in read_changes(tmp_path)] == [
        f"2 {CHANGES}.old",
        f"2 {CHANGES}",
        f"10 {CHANGES}",
    ]
    assert read_changes(tmp_path / "none") == []
