"""Measures the cost of keeping records, and how soon questions are answered: `python -m benchmarks.seeing`.

Two programs, each on an embedded host, one of which keeps records, echo in turns. What counts is the CPU time of
caller and proc: the time on the wall depends on where the kernel wakes them. The helper's CPU time is measured at
10 000 records a second, and for a burst; questions are about all of these. `python -m benchmarks.seeing questions N`
asks them about N calls. `benchmarks.seeing_peers` compares with peers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pyarrow.parquet import read_metadata

import monarch_hpc
from benchmarks.seeing_ends.end import Worker
from monarch_hpc import Actor, ActorMesh, endpoint, telemetry
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.attach.tables.rows import query_rows
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE, RUN_VARIABLE
from monarch_hpc.core.machine.procfs import each_pid, read_cpu_s, read_environ, read_resident_bytes
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.telemetry.kept.compact import compact
from monarch_hpc.telemetry.kept.parts import KEPT, list_parts, list_tables
from monarch_hpc.wire.start import COOKIE
from monarch_hpc.wire.tables.keeping import KEEPING, HostKeeping

_NUM_ROUNDS = 40
_NUM_ECHOES = 1000
_NUM_BURST = 30_000
_PACED_S = 10.0
_PACED_CALLS_PER_S = 5_000
"""Each call has a record at its caller and one at its callee."""

_NUM_QUESTIONS = 5
_NUM_KEPT_AT_ONCE = 10_000
"""As many calls as have room in the memory of a process until they are kept."""

_WAIT_S = 60.0


class Echo(Actor):
    """Answers with what it gets."""

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def cpu_s(self) -> float:
        return time.process_time()

    @endpoint
    def allocation(self) -> str:
        return os.environ[COOKIE]

    @endpoint
    def pid(self) -> int:
        return os.getpid()

    @endpoint
    def hold_gil(self) -> None:
        Worker().hold_gil()


@contextmanager
def open_echo(keep: str, num_warm: int = _NUM_ECHOES) -> Iterator[ActorMesh[Echo]]:
    """An actor on an embedded host that keeps records, or does not; it has been called as often."""
    config = load().config
    section = replace(config.telemetry, keep=keep, ship_s=1.0, keep_per_s=1_000_000)  # type: ignore[arg-type]
    with open_local(1, replace(config, telemetry=section)) as directory:
        os.environ |= {DIRECTORY_VARIABLE: str(directory), RUN_VARIABLE: "feedbeef"}
        try:
            with monarch_hpc.hosts().spawn_procs() as procs:
                echo = procs.spawn("echo", Echo)
                for number in range(num_warm):
                    echo.echo.call_one(number).get()
                yield echo
        finally:
            Controller.instance().close()


def serve_rounds(keep: str) -> None:
    """Echo for each line on stdin, and answer with the CPU time of a call, in microseconds."""
    with open_echo(keep) as echo:
        print("ready", flush=True)
        for _ in sys.stdin:
            before_s = time.process_time() + echo.cpu_s.call_one().get()
            for number in range(_NUM_ECHOES):
                echo.echo.call_one(number).get()
            after_s = time.process_time() + echo.cpu_s.call_one().get()
            print((after_s - before_s) / _NUM_ECHOES * 1e6, flush=True)


def compare() -> None:
    """Print the CPU time of a call with keeping and without."""
    times: dict[str, list[float]] = {"always": [], "never": []}
    argv = [sys.executable, "-m", "benchmarks.seeing"]
    programs = {
        keep: subprocess.Popen([*argv, keep], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for keep in times
    }
    for program in programs.values():
        assert program.stdout is not None
        program.stdout.readline()
    for number in range(_NUM_ROUNDS):
        for keep in sorted(times, reverse=number % 2 == 1):
            program = programs[keep]
            assert program.stdin is not None
            assert program.stdout is not None
            print("", file=program.stdin, flush=True)
            times[keep].append(float(program.stdout.readline()))
    for program in programs.values():
        program.communicate()
    kept, plain = statistics.median(times["always"]), statistics.median(times["never"])
    best = min(times["always"]) / min(times["never"])
    print(f"CPU time of an echo: {kept:.1f} us with keeping, {plain:.1f} us without")
    print(f"ratio of the medians {kept / plain:.3f}, of the least {best:.3f}")


def helper_of(echo: ActorMesh[Echo]) -> int:
    """Return the process id of the host's helper."""
    mark = f"{COOKIE}={echo.allocation.call_one().get()}".encode()
    for pid in each_pid():
        if mark in (read_environ(pid) or b"").split(b"\0"):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"monarch_hpc.telemetry.scribe" in file.read():
                    return pid
    raise RuntimeError("there is no helper")


def call_many(echo: ActorMesh[Echo], num: int) -> None:
    """Send calls, a thousand at a time."""
    for first in range(0, num, 1000):
        for future in [echo.echo.call_one(number) for number in range(first, min(first + 1000, num))]:
            future.get()


def call_paced(echo: ActorMesh[Echo]) -> float:
    """Send calls at a steady rate; return how long it took."""
    started_s, num = time.perf_counter(), 0
    while (passed_s := time.perf_counter() - started_s) < _PACED_S:
        due = int(passed_s * _PACED_CALLS_PER_S) - num
        for future in [echo.echo.call_one(number) for number in range(due)]:
            future.get()
        num += due
        time.sleep(0.01)
    return passed_s


def wait_until_kept(directory: Path, num_records: int, max_waiting_bytes: int = 1000) -> HostKeeping:
    """Wait until the helper has taken as many records and written all but the last ones; return its counters."""
    while True:
        found = query_rows(directory, KEEPING, _WAIT_S)
        assert found is not None
        (row,) = found.rows
        if row.records + row.lost >= num_records and row.waiting_bytes < max_waiting_bytes:
            return row
        time.sleep(0.1)


def keep_records(echo: ActorMesh[Echo]) -> Iterator[tuple[str, float, str]]:
    """Yield the cost of keeping, and the time of questions about what is kept."""
    directory, helper = Path(os.environ[DIRECTORY_VARIABLE]), helper_of(echo)
    start = wait_until_kept(directory, 2)
    before_s = read_cpu_s(helper)
    took_s = call_paced(echo)
    paced_s = read_cpu_s(helper) - before_s
    paced = wait_until_kept(directory, start.records + int(1.9 * took_s * _PACED_CALLS_PER_S))
    yield "records a second", (paced.records - start.records) / took_s, "1/s"
    yield "helper: part of a core", paced_s / took_s * 100, "%"
    before_s, started_s = read_cpu_s(helper), time.perf_counter()
    call_many(echo, _NUM_BURST)
    took_s = time.perf_counter() - started_s
    row = wait_until_kept(directory, paced.records + paced.lost + 2 * _NUM_BURST)
    yield "calls in a burst", _NUM_BURST / took_s, "1/s"
    yield "records lost", float(row.lost), ""
    yield "helper: CPU time of a record", (read_cpu_s(helper) - before_s) / (2 * _NUM_BURST) * 1e6, "us"
    yield "helper: memory", read_resident_bytes(helper) / 1e6, "MB"
    yield "a record in parts", sum(part.num_bytes for part in list_parts(directory)) / row.records, "B"
    yield "a record in tables", bytes_in_tables(directory), "B"
    yield from ask_questions(directory)


def bytes_in_tables(directory: Path) -> float:
    """The size of a call in files of tables, made of a copy of the parts of an allocation."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(directory / KEPT, copy / KEPT)
        compact(copy, 0)
        files = [path for name in ("handled", "sends") for path in list_tables(copy)[name]]
        num_rows: int = sum(read_metadata(path).num_rows for path in files)
        return sum(path.stat().st_size for path in files) / num_rows


def ask_questions(directory: Path) -> Iterator[tuple[str, float, str]]:
    """Yield the time of questions: the first one starts the engine, and later ones are the median of some."""

    def ask(sql: str) -> float:
        started_s = time.perf_counter()
        telemetry.query(sql, timeout_s=_WAIT_S)
        return time.perf_counter() - started_s

    yield "first question in SQL", ask("SELECT count(*) FROM procs"), "s"
    (row,) = telemetry.query("SELECT count(*) FROM handled", timeout_s=_WAIT_S).rows
    yield "calls that are kept", float(str(row[0])), ""
    for what, sql in (
        ("rows of procs, GROUP BY", "SELECT host, state, count(*) FROM procs GROUP BY 1, 2"),
        ("all calls, GROUP BY", "SELECT endpoint, count(*), avg(ran_us) FROM handled GROUP BY endpoint"),
        ("a question that ships", telemetry.question("slow-rank")),
    ):
        yield what, statistics.median(ask(sql) for _ in range(_NUM_QUESTIONS)), "s"
    argv = [sys.executable, "-m", "monarch_hpc.cli", "query", "--allocation", str(directory)]
    argv.append("SELECT endpoint, count(*) FROM handled GROUP BY endpoint")
    times = []
    for _ in range(_NUM_QUESTIONS):
        started_s = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started_s)
    yield "all calls, as a command", statistics.median(times), "s"


def fill(echo: ActorMesh[Echo], num: int) -> None:
    """Have so many calls recorded and kept."""
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    for first in range(0, num, _NUM_KEPT_AT_ONCE):
        call_many(echo, min(_NUM_KEPT_AT_ONCE, num - first))
        wait_until_kept(directory, 2 * min(first + _NUM_KEPT_AT_ONCE, num), 1 << 30)


def main() -> None:
    """Print the table, or serve the rounds of the program that does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", nargs="?", choices=["questions", "always", "never"], help="questions alone, or a program that echoes"
    )
    parser.add_argument("num", nargs="?", type=int, default=100_000, help="calls that questions are about")
    arguments = parser.parse_args()
    if arguments.what == "questions":
        with open_echo("always") as echo:
            fill(echo, arguments.num)
            for what, value, unit in ask_questions(Path(os.environ[DIRECTORY_VARIABLE])):
                print(f"{what:34} {value:10.3f} {unit}", flush=True)
        return
    if arguments.what:
        serve_rounds(arguments.what)
        return
    compare()
    with open_echo("always") as echo:
        for what, value, unit in keep_records(echo):
            print(f"{what:34} {value:10.3f} {unit}")


if __name__ == "__main__":
    main()
