"""`status --calls` on real procs: their state is read without their cooperation."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from monarch_hpc import Actor, ActorMesh, Channel, HostMesh, endpoint
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.cli.main import main
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE
from monarch_hpc.telemetry import layout
from monarch_hpc.telemetry.layout import RecordKind
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.reading import DecodedRecord, Memory, memory_of, read_events
from monarch_hpc.telemetry.views.picture import Picture, Row, draw
from monarch_hpc.telemetry.views.scene import read_scene
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.tables.calls import CALLS
from tests.child import child
from tests.system.support.controlling import controlled, settle
from tests.system.support.programs import Programs, programs

__all__ = ["programs"]

_LONG_S = 600.0
_ASK_S = 60.0


class Probe(Actor):
    """Runs, waits, and blocks on demand."""

    def __init__(self) -> None:
        self.me: ActorMesh[Probe] | None = None

    @endpoint
    def meet(self, me: ActorMesh[Probe]) -> int:
        self.me = me
        return os.getpid()

    @endpoint
    def sleep(self) -> None:
        time.sleep(_LONG_S)

    @endpoint
    async def wait(self, other: ActorMesh[Probe]) -> None:
        await other.sleep.call_one()

    @endpoint
    def ask(self, other: ActorMesh[Probe]) -> None:
        assert self.me is not None
        other.ask.call_one(self.me).get()

    @endpoint
    def hold_the_lock(self) -> None:
        ctypes.PyDLL(None).usleep(int(_LONG_S * 1e6))  # unlike CDLL, PyDLL keeps the interpreter's lock

    @endpoint
    def listen(self) -> object:
        return Channel.open()[1].recv().get()


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    loaded = load().config
    patient = replace(loaded.liveness, dead_s=_LONG_S)  # a stopped proc must not be killed during the test
    with controlled(replace(loaded, liveness=patient, procs=replace(loaded.procs, stop_s=0.5))) as hosts:
        with hosts.spawn_procs() as procs:
            settle(procs)
        yield hosts


class Stage:
    """Two actors, ``left`` on host 0 and ``right`` on host 1."""

    def __init__(self, hosts: HostMesh) -> None:
        self.procs = hosts.spawn_procs()
        self.left, self.right = (
            self.procs.slice(hosts=index).spawn(name, Probe) for index, name in enumerate(("left", "right"))
        )
        self.pids = [actor.meet.call_one(actor).get(_ASK_S) for actor in (self.left, self.right)]


@pytest.fixture
def stage(hosts: HostMesh, faults: list[MeshFailure]) -> Iterator[Stage]:
    stage = Stage(hosts)
    yield stage
    stage.procs.stop().get(_ASK_S)


def look() -> Picture:
    """The picture of all processes: asked again, if one has more to do than to answer in time."""
    report = wait_until(
        "all processes",
        lambda: query_rows(Path(os.environ[DIRECTORY_VARIABLE]), CALLS, _ASK_S),
        accept=lambda report: report is not None and report.missing == [],
    )
    assert report is not None
    return draw(report.rows)


def row(name: str, **wanted: object) -> Row:
    """Return the row of an actor, once it has the wanted state."""

    def probe() -> list[Row]:
        return [row for row in look().rows if row.actor == name]

    def fits(rows: list[Row]) -> bool:
        return bool(rows) and all(getattr(rows[-1], key) == value for key, value in wanted.items())

    return wait_until(f"{name} with {wanted}", probe, accept=fits)[-1]


def test_a_running_endpoint_and_who_waits_for_it(stage: Stage) -> None:
    stage.left.wait.call_one(stage.right)
    right = row("right[0]", state="running", endpoint="sleep", caller="left[0]")
    assert right.runs_s >= 0
    left = row("left[0]", state="waiting", endpoint="wait", waits_for="right[0].sleep")
    assert left.caller.startswith("program on ")
    assert row("program", state="idle").proc
    threading.Thread(target=lambda: stage.right.sleep.call_one().exception(), daemon=True).start()
    row("program", state="waiting", waits_for="right[0].sleep")
    row("right[0]", num_queued=1)


def test_two_actors_that_wait_for_each_other(stage: Stage) -> None:
    stage.left.ask.call_one(stage.right)
    picture = wait_until("the deadlock", look, accept=lambda picture: picture.deadlocks)
    (ring,) = picture.deadlocks
    assert sorted(ring) == ["left[0]", "right[0]"]


def test_a_proc_that_a_signal_has_stopped(stage: Stage) -> None:
    stage.left.sleep.call_one()
    row("left[0]", endpoint="sleep")
    os.kill(stage.pids[0], signal.SIGSTOP)
    stopped = row("left[0]", state="stopped by a signal", endpoint="sleep")
    assert stopped.caller.startswith("program on ")


def test_a_proc_that_holds_the_interpreters_lock(stage: Stage) -> None:
    stage.left.hold_the_lock.call_one()
    stage.left.sleep.call_one()
    row("left[0]", state="running", endpoint="hold_the_lock", num_queued=1)


def test_a_proc_that_was_killed(stage: Stage) -> None:
    stage.left.sleep.call_one()
    row("left[0]", endpoint="sleep")
    os.kill(stage.pids[0], signal.SIGKILL)
    row("left[0]", state="dead: signal 9 (SIGKILL)", endpoint="sleep")


def test_who_waits_for_a_message(stage: Stage) -> None:
    stage.left.listen.call_one()
    row("left[0]", state="waiting", waits_for="a message to a port")


def test_an_actor_that_fails(stage: Stage) -> None:
    class Broken(Actor):
        def __init__(self) -> None:
            raise ValueError("no disk")

    stage.procs.slice(hosts=0).spawn("broken", Broken)
    row("broken[0]", endpoint="", state="failed: its constructor raised ValueError: no disk")


def test_a_call_of_all_shows_who_has_not_answered(stage: Stage) -> None:
    both = stage.procs.spawn("both", Probe)
    thread = threading.Thread(target=lambda: both.sleep.call().exception(), daemon=True)
    thread.start()
    row("program", waits_for="both[0].sleep, both[1].sleep")


def test_the_command(stage: Stage) -> None:
    stage.left.ask.call_one(stage.right)
    wait_until("the deadlock", look, accept=lambda picture: picture.deadlocks)
    directory = os.environ[DIRECTORY_VARIABLE]
    done = status(directory)
    header, *lines = done.stdout.splitlines()
    assert header.split()[:4] == ["ACTOR", "PROC", "STATE", "RUNS"]
    assert any("left[0]" in line and "waiting" in line and "right[0].ask" in line for line in lines)
    assert "deadlock: " in done.stderr
    document = json.loads(status(directory, "--json").stdout)
    (allocation,) = document["allocations"]
    assert len(allocation["deadlocks"]) == 1
    assert {row["actor"] for row in allocation["rows"]} >= {"left[0]", "right[0]", "program"}
    assert {"left.meet", "right.meet"} <= {f"{one['name']}.{one['endpoint']}" for one in allocation["endpoints"]}
    by_name = json.loads(status(Path(directory).name, "--json").stdout)
    assert [found["name"] for found in by_name["allocations"]] == [Path(directory).name]


PROGRAM = """
import ctypes, os, sys, threading
from monarch_hpc import Actor, endpoint, this_host

class Sleeper(Actor):
    @endpoint
    def sleep(self): threading.Event().wait()

procs = this_host().spawn_procs()
sleeper = procs.spawn("sleeper", Sleeper)
procs.initialized.get()
call = sleeper.sleep.call_one()
print("asleep", flush=True)
if sys.argv[1] == "bound":
    ctypes.PyDLL(None).usleep(int(600e6))  # holding the interpreter's lock
call.get()
"""


@pytest.mark.parametrize(("how", "state"), [("stopped", "stopped by a signal"), ("bound", "idle")])
def test_a_program_that_cannot_answer_is_seen_all_the_same(programs: Programs, how: str, state: str) -> None:
    place = {"TMPDIR": str(programs.folder), DIRECTORY_VARIABLE: ""}
    program = programs.start(PROGRAM, how, env=place)
    programs.until(program, "asleep")
    (directory,) = (path.parent for path in programs.folder.glob("monarch-hpc-*/ready.json"))
    if how == "stopped":
        os.kill(program.pid, signal.SIGSTOP)

    def seen() -> dict[str, tuple[str, str]]:
        report = query_rows(directory, CALLS, _ASK_S)
        if report is None or report.missing:
            return {}
        return {row.actor: (row.state, row.caller.partition(" on ")[0]) for row in draw(report.rows).rows}

    wanted = {"program": (state, ""), "sleeper[0]": ("running", "program")}
    wait_until("both", seen, accept=lambda rows: rows == wanted)
    os.kill(program.pid, signal.SIGKILL)


def test_how_long_endpoints_ran(stage: Stage) -> None:
    header, *lines = status(os.environ[DIRECTORY_VARIABLE], table="--endpoints").stdout.splitlines()
    assert header.split()[:4] == ["ENDPOINT", "PROCS", "CALLS", "FAILED"]
    (line,) = [line.split() for line in lines if line.startswith("left.meet ")]
    assert line[3] == "-"  # none failed
    assert len(line) == 4 + 2 * 6  # each duration has its unit


def test_the_processes_of_a_run(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    os.kill(stage.pids[1], signal.SIGSTOP)
    state = Path(f"/proc/{stage.pids[1]}/status")
    wait_until("the stop", state.read_text, accept=lambda text: "T (stopped)" in text)
    directory = os.environ[DIRECTORY_VARIABLE]

    def rows() -> dict[str, list[str]]:
        head, *lines = status(directory, "--run", "feedbeef", table="--procs").stdout.splitlines()
        assert head.split() == ["RUN", "MESH", "RANK", "HOST", "PID", "STATE", "MEMORY"]
        return {line.split()[4]: line.split() for line in lines if "ended" not in line}

    found = wait_until("its state", rows, accept=lambda seen: seen[str(stage.pids[1])][5] == "stopped")
    assert 0 < int(found[str(stage.pids[0])][1]) < 1000, "the number within the program"
    assert found[str(stage.pids[0])][5] == "ready"
    assert found[str(os.getpid())][1:3] == ["program", "-"]
    for table in ("--procs", "--calls", "--endpoints", "--memory"):
        assert main(["status", table, directory, "--run", "other"]) == 64
        assert "'--run': there is no run other; there are: feedbeef" in capsys.readouterr().err
    document = json.loads(status(directory, "--json", table="--procs").stdout)
    (allocation,) = document["allocations"]
    assert {row["pid"] for row in allocation["rows"]} >= {*stage.pids, os.getpid()} and allocation["missing"] == []


def status(*arguments: str, table: str = "--calls") -> subprocess.CompletedProcess[str]:
    """What the command shows when all have answered in the two seconds for which it waits."""
    command = [sys.executable, "-m", "monarch_hpc.cli", "status", table, *arguments]
    late = "no answer from", "its head does not answer"

    def run() -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done

    return wait_until("all answers", run, accept=lambda done: not any(words in done.stderr for words in late))


def test_a_run_without_calls(hosts: HostMesh) -> None:
    with hosts.spawn_procs() as procs:
        assert procs.initialized.get()
        idle = [("program", "idle"), ("", "idle"), ("", "idle")]
        wait_until(
            "three that are idle",
            lambda: [(row.actor, row.state) for row in look().rows if not row.state.startswith("dead")],
            accept=lambda rows: rows == idle,
        )


_WRITER = """
import itertools, sys, threading
from monarch_hpc.telemetry.recorder import Recorder
recorder = Recorder(int(sys.argv[1]), 1, plain=sys.argv[2] == "plain")

def write(thread):
    handling = recorder.handling(thread)
    for number in itertools.count(1):
        handling.begin(thread, number & 0xFFFF, number, number + 1, 0)
        handling.end(number)
        recorder.sent(2 * number + thread, thread, thread, number & 0xFFFF, 0, number)

for thread in (0, 1):
    threading.Thread(target=write, args=(thread,), daemon=True).start()
print("writing", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("pen", ["compiled", "plain"] * 3)
def test_a_writer_that_is_killed_leaves_no_wrong_record(pen: str) -> None:
    fd = make_memory("test")
    memory = memory_of(fd)
    command = [sys.executable, "-c", _WRITER, str(fd), pen]
    try:
        with child(subprocess.Popen(command, pass_fds=[fd], stdout=subprocess.PIPE)) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"writing\n"
            check(
                wait_until("half a ring", lambda: read_events(memory), accept=is_half_full), memory
            )  # while it writes
            writer.kill()
        events = read_events(memory)
        check(events, memory)
        # Each thread may have been about to write one record.
        assert events[-1].seq - 2 <= len(events) or len(events) >= layout.EVENTS.num - 2
    finally:
        os.close(fd)


def is_half_full(events: list[DecodedRecord]) -> bool:
    return len(events) > layout.EVENTS.num // 2


def check(events: list[DecodedRecord], memory: Memory) -> None:
    for event in events:
        assert event.kind == RecordKind.HANDLED
        assert (event.peer, event.num_bytes) == (event.msg & 0xFFFF, event.msg + 1)
        assert event.actor == event.name
        assert event.dur >= 0
        assert event.answer_bytes == event.msg
    for call in read_scene(memory).sent:
        assert int(call.target_actor, 16) == call.call // 2
