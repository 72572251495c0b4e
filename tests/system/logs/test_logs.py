"""Output and log records of procs, from their pipes to the program: folding, records, settings, floods."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

import monarch_hpc
from monarch_hpc import Actor, ActorDied, HostMesh, ProcMesh, RecordHandler, endpoint
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.support.captured_output import PATIENCE_S, capture_output, log_file
from tests.system.support.controlling import SharedHosts, controlled, settle


class Speaker(Actor):
    """Prints and logs what a test asks for."""

    @endpoint
    def say(self, *lines: str) -> None:
        print(*lines, sep="\n")

    @endpoint
    def log(self, level: int, text: str) -> None:
        logging.getLogger("lib.part").log(level, text)

    @endpoint
    def log_error(self) -> None:
        try:
            raise KeyError("broken")
        except KeyError:
            logging.getLogger("lib.part").exception("it failed")

    @endpoint
    def log_plainly(self) -> None:
        logging.warning("from the module")
        logging.getLogger("silent").addHandler(logging.NullHandler())
        logging.getLogger("silent").warning("from a library")
        own = logging.getLogger("own")
        own.addHandler(logging.StreamHandler(sys.stdout))
        own.warning("has a handler")

    @endpoint
    def configure(self, how: str) -> list[str]:
        root = logging.getLogger()
        if how == "basic":
            logging.basicConfig(format="mine: %(message)s")
        elif how == "force":
            logging.basicConfig(format="mine: %(message)s", force=True)
        elif how == "add":
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("mine: %(message)s"))
            root.addHandler(handler)
        else:
            logging.basicConfig(level=logging.INFO, handlers=[RecordHandler()])
        root.warning("hello")
        return [type(handler).__name__ for handler in root.handlers]

    @endpoint
    def progress(self) -> None:
        sys.stderr.write("10 %")
        sys.stderr.flush()
        logging.getLogger("lib").warning("in between")

    @endpoint
    def last_words(self, *lines: str) -> None:
        print(*lines, sep="\n", flush=True)
        os._exit(3)

    @endpoint
    def say_and_fail(self, line: str) -> None:
        print(line, line, sep="\n")
        raise ValueError("after the line")

    @endpoint
    async def hush(self, procs: ProcMesh) -> None:
        await procs.logging_option(stream_to_client=False, aggregate_window_sec=0)


@pytest.fixture(scope="module")
def hosts(shared_hosts: SharedHosts) -> Iterator[HostMesh]:
    with shared_hosts.controlled() as hosts:
        with hosts.spawn_procs() as first:
            settle(first)
        yield hosts


@pytest.fixture
def procs(hosts: HostMesh) -> Iterator[ProcMesh]:
    with hosts.spawn_procs(per_host={"gpus": 2}, name="w") as procs:
        settle(procs)
        yield procs


def test_what_all_ranks_say_is_two_lines_and_each_keeps_its_order(procs: ProcMesh) -> None:
    with capture_output() as captured:
        # Long enough for any machine; the end of the procs flushes all lines.
        asyncio.run(procs.logging_option(aggregate_window_sec=600))  # where Monarch has a coroutine
        procs.spawn("speaker", Speaker).say.call("ready", "go").get(PATIENCE_S)
        captured.until("go")
        procs.stop()
        wait_until("all lines", captured.lines, PATIENCE_S, accept=lambda lines: len(lines) == 4)
    assert sorted(line.partition("] ")[2] for line in captured.lines()) == [
        "go",
        "go (×3 more)",
        "ready",
        "ready (×3 more)",
    ]
    files = [log_file(procs, rank) for rank in range(4)]  # written by a thread of their agent
    wait_until("the files", lambda: {file.read_text() for file in files}, accept=lambda found: found == {"ready\ngo\n"})


def test_records_arrive_with_level_and_logger_and_files_have_their_text(procs: ProcMesh) -> None:
    one = procs.slice(hosts=1, gpus=0).spawn("speaker", Speaker)
    with capture_output() as captured:
        one.log.call_one(logging.INFO, "not asked for").get(PATIENCE_S)
        one.log.call_one(logging.WARNING, "careful").get(PATIENCE_S)
        one.log_error.call_one().get(PATIENCE_S)
        one.progress.call_one().get(PATIENCE_S)
        lines = captured.until("in between", "err")
    assert lines[:3] == [
        "[w r02 local1] WARNING lib.part: careful",
        "[w r02 local1] ERROR lib.part: it failed",
        "[w r02 local1] Traceback (most recent call last):",
    ]
    assert lines[-3:] == [
        "[w r02 local1] KeyError: 'broken'",
        "[w r02 local1] 10 %",
        "[w r02 local1] WARNING lib: in between",
    ]
    plain = [line.removeprefix("[w r02 local1] ") for line in lines]
    path = log_file(procs, 2)
    # Procs of the same rank share a file, in all meshes.
    wait_until("the file", path.read_text, PATIENCE_S, accept=lambda text: text.splitlines()[-len(plain) :] == plain)


def test_records_that_no_handler_takes_are_taken_and_no_others(procs: ProcMesh) -> None:
    one = procs.slice(hosts=0, gpus=0).spawn("speaker", Speaker)
    with capture_output() as captured:
        one.log_plainly.call_one().get(PATIENCE_S)
        assert captured.until("has a handler") == ["[w r00 local0] has a handler"]
        assert captured.until("from a library", "err") == [
            "[w r00 local0] WARNING root: from the module",
            "[w r00 local0] WARNING silent: from a library",
        ]


@pytest.mark.parametrize(
    ("how", "line", "handlers"),
    [
        ("basic", "mine: hello", ["StreamHandler"]),
        ("force", "mine: hello", ["StreamHandler"]),
        ("add", "mine: hello", ["_Fallback", "StreamHandler"]),
        ("ours", "WARNING root: hello", ["RecordHandler"]),
    ],
)
def test_code_that_configures_logging_has_it(procs: ProcMesh, how: str, line: str, handlers: list[str]) -> None:
    one = procs.slice(hosts=0, gpus=1).spawn("speaker", Speaker)
    with capture_output() as captured:
        assert one.configure.call_one(how).get(PATIENCE_S) == handlers
        one.say.call_one("the end").get(PATIENCE_S)
        one.log.call_one(logging.ERROR, "last").get(PATIENCE_S)
        captured.until("last", "err")
        assert captured.lines("err")[0] == f"[w r01 local0] {line}"
        assert len([found for found in captured.lines("err") if "hello" in found]) == 1


def test_a_mesh_chooses_its_level_and_who_gets_records(procs: ProcMesh, caplog: pytest.LogCaptureFixture) -> None:
    half = procs.slice(hosts=1)
    speakers = procs.spawn("speaker", Speaker)
    with capture_output() as captured:
        half.logging_option(level="info", aggregate_window_sec=0).get(PATIENCE_S)
        speakers.log.call(logging.INFO, "some").get(PATIENCE_S)
        speakers.log.call(logging.WARNING, "all").get(PATIENCE_S)
        wait_until("six records", lambda: captured.lines("err"), PATIENCE_S, accept=lambda lines: len(lines) == 6)
        assert sorted(line for line in captured.lines("err") if "some" in line) == [
            "[w r02 local1] INFO lib.part: some",
            "[w r03 local1] INFO lib.part: some",
        ]

        asyncio.run(_choose(procs))
        speakers.log.call(logging.ERROR, "to the program").get(PATIENCE_S)
        wait_until("four records", lambda: len(caplog.records), PATIENCE_S, accept=lambda number: number == 4)
        assert not [line for line in captured.lines("err") if "to the program" in line]
    assert {(record.name, getattr(record, "mesh", "")) for record in caplog.records} == {
        ("monarch_hpc.remote.lib.part", "w")
    }
    assert sorted(getattr(record, "rank", -1) for record in caplog.records) == [0, 1, 2, 3]


async def _choose(procs: ProcMesh) -> None:
    await procs.logging_option(to_logging=True)


def test_a_mesh_can_be_silent_and_speak_again_and_its_files_have_all(procs: ProcMesh) -> None:
    speakers = procs.spawn("speaker", Speaker)
    with capture_output() as captured:
        procs.slice(gpus=0).logging_option(stream_to_client=False, aggregate_window_sec=0).get(PATIENCE_S)
        speakers.say.call("half").get(PATIENCE_S)
        procs.logging_option(aggregate_window_sec=0).get(PATIENCE_S)
        speakers.say.call("whole").get(PATIENCE_S)
        wait_until("six lines", captured.lines, PATIENCE_S, accept=lambda lines: len(lines) == 6)
    assert sorted(line for line in captured.lines() if "half" in line) == ["[w r01 local0] half", "[w r03 local1] half"]
    for rank in range(4):
        path = log_file(procs, rank)
        wait_until("both", path.read_text, PATIENCE_S, accept=lambda text: text.endswith("half\nwhole\n"))


def test_an_actor_chooses_for_the_procs_that_it_was_given(procs: ProcMesh) -> None:
    speakers = procs.spawn("speaker", Speaker)
    with capture_output() as captured:
        procs.logging_option(aggregate_window_sec=0).get(PATIENCE_S)
        speakers.slice(hosts=0, gpus=0).hush.call_one(procs.slice(hosts=1)).get(PATIENCE_S)
        speakers.say.call("heard").get(PATIENCE_S)
        procs.stop().get(PATIENCE_S)
        wait_until("two lines", captured.lines, PATIENCE_S, accept=lambda lines: len(lines) == 2)
        assert sorted(captured.lines()) == ["[w r00 local0] heard", "[w r01 local0] heard"]


def test_choices_that_make_no_sense_are_refused(hosts: HostMesh, procs: ProcMesh) -> None:
    with pytest.raises(ValueError, match="aggregate_window_sec is -1"):
        procs.logging_option(aggregate_window_sec=-1)
    with pytest.raises(ValueError, match=r"level 'loud' is not known.*WARNING"):
        procs.logging_option(level="loud")
    with pytest.raises(RuntimeError, match="the program's own process"):
        monarch_hpc.this_proc().logging_option()


def test_last_words_do_not_wait_for_the_window(hosts: HostMesh) -> None:
    with capture_output() as captured, hosts.spawn_procs(name="w") as procs:
        settle(procs)
        procs.logging_option(aggregate_window_sec=600).get(PATIENCE_S)
        speakers = procs.spawn("speaker", Speaker)
        one = speakers.slice(hosts=1)
        with pytest.raises(ValueError, match="after the line"):
            one.say_and_fail.call("before").get(PATIENCE_S)
        captured.until("before (×1 more)")
        with pytest.raises(ActorDied, match="exit code 3"):
            one.last_words.call_one("bye", "bye").get(PATIENCE_S)
        captured.until("died: exit code 3", "err")
        assert "[w r01 local1] bye (×1 more)" in captured.lines()


class Keeper(Actor):
    """Keeps its host's procs from changing their levels, as a handler that waits for a disk does."""

    @endpoint
    def keep(self, begun: Path, gate: Path) -> None:
        with cast(Any, logging)._lock:
            begun.touch()
            wait_until("the gate", gate.exists)


@pytest.mark.slow  # must last for longer than actors have that are told to stop
def test_a_level_that_takes_its_time_is_set(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    with controlled(load({"procs.stop_s": 0.1}).config) as hosts, hosts.spawn_procs() as procs:
        kept = procs.spawn("keeper", Keeper).keep.call(begun, gate)
        wait_until("the lock", begun.exists)
        settings = procs.logging_option(level="ERROR")
        with pytest.raises(TimeoutError):
            settings.get(0.5)
        gate.touch()
        settings.get(PATIENCE_S)
        kept.get(PATIENCE_S)
