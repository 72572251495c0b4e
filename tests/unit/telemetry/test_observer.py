"""A program's memory is read from its own machine; memory that only resembles it is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from monarch_hpc.core.machine.place import read_place
from monarch_hpc.telemetry.memory import make_memory
from monarch_hpc.telemetry.observer import RecordObserver, open_observer
from monarch_hpc.telemetry.recorder import Recorder
from monarch_hpc.wire.control.questions import Ask
from monarch_hpc.wire.control.runs import Recording
from monarch_hpc.wire.tables.answer import answer
from monarch_hpc.wire.tables.calls import CALLS, PROGRAM_MESH
from monarch_hpc.wire.tables.procs import PROCS
from tests.child import child

HERE = 0xFEED


@pytest.fixture
def recording() -> Iterator[Recording]:
    """A message that announces this process's records."""
    fd = make_memory("test")
    recorder = Recorder(os.dup(fd), HERE)
    recorder.actor(0xABC, "trainer", 3)
    yield Recording("run", read_place(), "n0", os.getpid(), fd, f"{HERE:x}")
    os.close(fd)


def calls_of(observer: RecordObserver) -> str:
    return answer(Ask(1, "calls", {}, 1.0), "a program", observer.sources).rows


def test_a_program_of_this_machine_is_read_until_it_ends(recording: Recording) -> None:
    observer = open_observer(recording)
    assert observer is not None
    (told,) = CALLS.read(calls_of(observer))
    assert (told.run, told.mesh, told.host, told.pid) == ("run", PROGRAM_MESH, "n0", os.getpid())
    assert (told.scene.incarnation, told.state) == ("feed", "ready")
    assert [actor.name for actor in told.scene.actors] == ["trainer"]
    (row,) = PROCS.read(answer(Ask(1, "procs", {}, 1.0), "a program", observer.sources).rows)
    assert (row.mesh, row.pid, row.state) == (PROGRAM_MESH, os.getpid(), "ready") and row.rss_bytes > 1 << 20
    observer.close()
    assert CALLS.read(calls_of(observer)) == []


def test_who_has_ended_tells_nothing_any_more(recording: Recording) -> None:
    command = [sys.executable, "-c", "input()"]
    with child(subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[recording.fd])) as program:
        observer = open_observer(replace(recording, pid=program.pid))
        assert observer is not None and len(CALLS.read(calls_of(observer))) == 1
        program.kill()
    assert CALLS.read(calls_of(observer)) == []
    observer.close()
    assert open_observer(replace(recording, pid=program.pid)) is None


def test_nothing_else_is_taken_for_the_memory_of_a_program(recording: Recording) -> None:
    assert open_observer(replace(recording, place="another machine")) is None
    assert open_observer(replace(recording, place="")) is None
    assert open_observer(replace(recording, incarnation="beef")) is None
    assert open_observer(replace(recording, fd=9999)) is None
    ends = os.pipe()  # to open one end would wait for the other
    with open("/proc/self/exe", "rb") as file:
        for fd in (*ends, file.fileno()):
            assert open_observer(replace(recording, fd=fd)) is None
    for fd in ends:
        os.close(fd)
