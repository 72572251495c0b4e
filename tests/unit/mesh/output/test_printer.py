"""Output of procs reaches the program's streams or its `logging`, or is dropped and counted."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import io
import logging
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from monarch_hpc.config.load import load
from monarch_hpc.config.schema import LogsConfig
from monarch_hpc.mesh.output.printer import Printer
from monarch_hpc.testing import wait_until
from monarch_hpc.wire.control.output import Output
from monarch_hpc.wire.proc_key import ProcKey
from monarch_hpc.wire.record import LogRecord, render_record

RECORD = LogRecord("lib.x", logging.WARNING, "careful", 12.5, "worker", "/a/b.py", 7, "go", "main")
MARKED = render_record(RECORD).decode().removesuffix("\n")


class Terminal(io.StringIO):
    """An output stream that a test can block."""

    def __init__(self) -> None:
        super().__init__()
        self.moving = threading.Event()
        self.moving.set()

    def write(self, text: str) -> int:
        assert self.moving.wait(60.0)
        return super().write(text)


@pytest.fixture
def config() -> LogsConfig:
    return dataclasses.replace(load().config.logs, fold_s=0.0)


@pytest.fixture
def out() -> Terminal:
    return Terminal()


@contextlib.contextmanager
def printing(config: LogsConfig, out: TextIO) -> Iterator[Printer]:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        printer = Printer(config)
        try:
            yield printer
        finally:
            printer.close()


def lines(*texts: str, rank: int = 3, stream: str = "out", dropped: int = 0) -> Output:
    return Output(ProcKey("aaaa", 1, rank, 0), stream, list(texts), dropped)


def test_lines_have_mesh_rank_and_host_and_what_was_left_out_is_told_in_its_place(
    config: LogsConfig, out: Terminal
) -> None:
    with printing(config, out) as printer:
        printer.show(lines("one"), "w", "n2")
        printer.show(lines("two", dropped=7), "", "n2")
        printer.put("monarch-hpc: news\n")
    assert out.getvalue().splitlines() == [
        "[w r03 n2] one",
        "[r03 n2] ... 7 lines left out here; the run's log files have them",
        "[r03 n2] two",
        "monarch-hpc: news",
    ]


def test_news_come_after_all_that_was_said_before(config: LogsConfig, out: Terminal) -> None:
    with printing(dataclasses.replace(config, fold_s=600.0), out) as printer:
        for rank in range(16):
            printer.show(lines("ready", rank=rank), "", f"n{rank}")
        printer.put("monarch-hpc: proc 3 died\n")
        wait_until("the news", lambda: "died" in out.getvalue())
        assert out.getvalue().splitlines() == [
            "[r00 n0] ready",
            "[r01-r15] ready (×15 more)",
            "monarch-hpc: proc 3 died",
        ]


def test_a_failure_lets_nothing_wait(config: LogsConfig, out: Terminal) -> None:
    with printing(dataclasses.replace(config, fold_s=600.0), out) as printer:
        printer.show(lines("ready", "ready"), "", "n0")
        printer.flush_soon()
        wait_until("the second line", lambda: "×1 more" in out.getvalue())


def test_the_window_ends_by_itself(config: LogsConfig, out: Terminal) -> None:
    with printing(dataclasses.replace(config, fold_s=0.05), out) as printer:
        printer.show(lines("ready", "ready"), "", "n0")
        wait_until("the second line", lambda: "×1 more" in out.getvalue())


def test_records_are_printed_or_logged(config: LogsConfig, out: Terminal, caplog: pytest.LogCaptureFixture) -> None:
    with printing(dataclasses.replace(config, with_actor=True), out) as printer:
        printer.show(lines(MARKED, stream="err"), "w", "n2")
        printer.show(lines(MARKED), "w", "n2")  # printed text is not a record, whatever it looks like
        printer.choose(1, 0.0, to_logging=True)
        printer.show(lines(MARKED, "plain", stream="err"), "w", "n2")
    printed = out.getvalue().split("\n")
    assert printed == ["[w r03 n2 worker] WARNING lib.x: careful", f"[w r03 n2] {MARKED}", "[w r03 n2] plain", ""]
    (record,) = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == (
        "monarch_hpc.remote.lib.x",
        logging.WARNING,
        "careful",
    )
    found = {name: getattr(record, name) for name in ("mesh", "rank", "host", "actor", "lineno", "module")}
    assert found == {"mesh": "w", "rank": 3, "host": "n2", "actor": "worker", "lineno": 7, "module": "b"}


def test_a_filter_that_fails_stops_nothing(config: LogsConfig, out: Terminal) -> None:
    def broken(_record: logging.LogRecord) -> bool:
        raise RuntimeError("broken filter")

    logger = logging.getLogger("monarch_hpc.remote.lib.x")
    logger.addFilter(broken)
    try:
        with printing(dataclasses.replace(config, to_logging=True), out) as printer:
            printer.show(lines(MARKED, "plain", stream="err"), "", "n2")
    finally:
        logger.removeFilter(broken)
    assert "[r03 n2] plain" in out.getvalue().splitlines()


def test_a_terminal_that_stands_still_costs_lines_and_no_memory(config: LogsConfig, out: Terminal) -> None:
    out.moving.clear()
    with printing(config, out) as printer:
        for _ in range(100):
            printer.show(lines("x" * (1 << 20)), "", "n2")
        out.moving.set()
    printed = out.getvalue().splitlines()
    told = [line for line in printed if "left out" in line]
    assert len(told) == 1 and len(printed) < 20
    num_left_out = int(told[0].partition("... ")[2].split()[0])
    assert num_left_out + len(printed) - 1 == 100


def test_a_terminal_that_knows_only_ascii_shows_what_it_can(config: LogsConfig) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    with printing(dataclasses.replace(config, fold_s=600.0), out) as printer:
        printer.show(lines("é", "é"), "", "n2")
    assert raw.getvalue().decode().splitlines() == ["[r03 n2] \\xe9", "[r03 n2] \\xe9 (\\xd71 more)"]


def test_a_flush_prints_what_is_held_back(config: LogsConfig, out: Terminal) -> None:
    with printing(dataclasses.replace(config, fold_s=600.0), out) as printer:
        printer.show(lines("same", "same", "same"), "", "n2")
        assert printer.flush(60.0)
        assert out.getvalue().splitlines() == ["[r03 n2] same", "[r03 n2] same (×2 more)"]
        out.moving.clear()
        printer.show(lines("late"), "", "n2")
        assert not printer.flush(0.01)
        out.moving.set()


def test_it_prints_in_the_context_of_a_cell(config: LogsConfig) -> None:
    cell = contextvars.ContextVar("cell", default="none")
    printed: list[str] = []

    class Kernel(io.StringIO):
        def write(self, text: str) -> int:
            if text.strip():
                printed.append(f"{cell.get()}: {text.strip()}")
            return len(text)

    with printing(config, Kernel()) as printer:
        for name in ("first", "second"):
            token = cell.set(name)
            printer.context = contextvars.copy_context()
            cell.reset(token)
            printer.show(lines(f"of the {name}"), "", "n2")
            assert printer.flush(60.0)
    assert printed == ["first: [r03 n2] of the first", "second: [r03 n2] of the second"]
