"""Measures the cost of keeping records, and how soon questions are answered: `python -m benchmarks.seeing`.

Echo calls with keeping and without take turns, each in an allocation of one embedded host; the medians of the quietest
rounds are compared. The helper's CPU time is that per record of a burst that it keeps. Questions are about that burst.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, endpoint, telemetry
from monarch_hpc.attach.attach import query_rows
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.config.program import DIRECTORY_VARIABLE, RUN_VARIABLE
from monarch_hpc.core.machine.procfs import each_pid, read_cpu_s, read_environ, read_resident_bytes
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.telemetry.kept.parts import list_parts
from monarch_hpc.wire.start import COOKIE
from monarch_hpc.wire.tables.keeping import KEEPING

_NUM_TURNS = 5
_NUM_ROUNDS = 6
_NUM_ECHOES = 500
_NUM_BURST = 30_000
_WAIT_S = 60.0


class Echo(Actor):
    """Answers with what it gets."""

    @endpoint
    def echo(self, value: int) -> int:
        return value

    @endpoint
    def allocation(self) -> str:
        return os.environ[COOKIE]


@contextmanager
def open_echo(keep: str) -> Iterator[ActorMesh[Echo]]:
    """An actor on an embedded host that keeps records, or does not."""
    config = load().config
    section = replace(config.telemetry, keep=keep, ship_s=1.0, keep_per_s=1_000_000)  # type: ignore[arg-type]
    with open_local(1, replace(config, telemetry=section)) as directory:
        os.environ |= {DIRECTORY_VARIABLE: str(directory), RUN_VARIABLE: "feedbeef"}
        try:
            with monarch_hpc.hosts().spawn_procs() as procs:
                echo = procs.spawn("echo", Echo)
                for number in range(_NUM_ECHOES):
                    echo.echo.call_one(number).get()
                yield echo
        finally:
            Controller.instance().close()


def echo_s(echo: ActorMesh[Echo]) -> float:
    """Return the median time of an echo in the quietest round."""
    rounds = []
    for _ in range(_NUM_ROUNDS):
        times = []
        for number in range(_NUM_ECHOES):
            started = time.perf_counter()
            echo.echo.call_one(number).get()
            times.append(time.perf_counter() - started)
        rounds.append(statistics.median(times))
    return min(rounds)


def helper_of(echo: ActorMesh[Echo]) -> int:
    """Return the process id of the host's helper."""
    mark = f"{COOKIE}={echo.allocation.call_one().get()}".encode()
    for pid in each_pid():
        if mark in (read_environ(pid) or b"").split(b"\0"):
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                if b"monarch_hpc.telemetry.scribe" in file.read():
                    return pid
    raise RuntimeError("there is no helper")


def keep_burst(echo: ActorMesh[Echo]) -> Iterator[tuple[str, float, str]]:
    """Yield the cost of keeping a burst of calls, and the time of questions about it."""
    directory, helper = Path(os.environ[DIRECTORY_VARIABLE]), helper_of(echo)
    before_s = read_cpu_s(helper)
    started_s = time.perf_counter()
    for first in range(0, _NUM_BURST, 1000):
        for future in [echo.echo.call_one(number) for number in range(first, first + 1000)]:
            future.get()
    took_s = time.perf_counter() - started_s
    while True:  # until the helper has written everything
        found = query_rows(directory, KEEPING, _WAIT_S)
        assert found is not None
        (row,) = found.rows
        if row.records + row.lost >= 2 * _NUM_BURST and row.waiting_bytes < 1000:
            break
        time.sleep(0.2)
    num = row.records
    yield "calls in the burst", _NUM_BURST / took_s, "1/s"
    yield "records lost", float(row.lost), ""
    yield "helper: CPU time of a record", (read_cpu_s(helper) - before_s) / num * 1e6, "us"
    yield "helper: memory", read_resident_bytes(helper) / 1e6, "MB"
    yield "a record in parts", sum(part.num_bytes for part in list_parts(directory)) / num, "B"
    for what, sql in (
        ("first question in SQL", "SELECT count(*) FROM procs"),
        ("live rows, GROUP BY", "SELECT host, state, count(*) FROM procs GROUP BY 1, 2"),
        ("kept and live rows, GROUP BY", "SELECT endpoint, count(*), avg(ran_us) FROM handled GROUP BY endpoint"),
    ):
        started_s = time.perf_counter()
        telemetry.query(sql, timeout_s=_WAIT_S)
        yield what, time.perf_counter() - started_s, "s"


def main() -> None:
    """Print the table."""
    kept: list[float] = []
    plain: list[float] = []
    for _ in range(_NUM_TURNS):
        for keep, times in (("always", kept), ("never", plain)):
            with open_echo(keep) as echo:
                times.append(echo_s(echo))
    print(
        f"echo with keeping {min(kept) * 1e6:.1f} us, without {min(plain) * 1e6:.1f} us: {min(kept) / min(plain):.3f}x"
    )
    with open_echo("always") as echo:
        for what, value, unit in keep_burst(echo):
            print(f"{what:34} {value:10.3f} {unit}")


if __name__ == "__main__":
    main()
