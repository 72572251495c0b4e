"""Measures our channels between two processes on this machine, together with floors from the same run.

    python -m benchmarks.transport                       # all rows; about ten minutes
    python -m benchmarks.transport --rows tcp socket     # some rows
    python -m benchmarks.transport --rounds 1            # a short run

Each process has its own core if there are two. The rows take turns within each round, so that other load on the machine
hits all alike. The table shows the best round (for p99 the median one); ratios are medians of the ratios within the
rounds. What a goal compares with a floor is also compared by the CPU time of both processes, which other load stretches
less. A message of each size goes before the first round, so that memory is in place. Exit code 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.pairs import Gone, Pair, Perftest

OURS = ("ucx-shm-spin", "ucx-shm", "ucx-tcp-spin", "ucx-tcp", "tcp-spin", "tcp", "relay")
FLOORS = ("pipe", "socket", "zmq-tcp", "zmq-ipc", "mpi-shm", "mpi-tcp", "perftest-shm", "perftest-tcp")

_NAMES = {
    "ucx-shm-spin": "ucx-shm, spinning",
    "ucx-shm": "ucx-shm, asleep",
    "ucx-tcp-spin": "ucx-tcp, spinning",
    "ucx-tcp": "ucx-tcp, asleep",
    "tcp-spin": "tcp, sealed, spinning",
    "tcp": "tcp, sealed, asleep",
    "relay": "relay, over pipes",
    "pipe": "pipe",
    "socket": "socket",
    "zmq-tcp": "pyzmq, tcp",
    "zmq-ipc": "pyzmq, ipc",
    "mpi-shm": "mpi4py, shm",
    "mpi-tcp": "mpi4py, tcp",
    "perftest-shm": "ucx_perftest, shm",
    "perftest-tcp": "ucx_perftest, tcp",
}

MIB = 2**20


@dataclass(frozen=True)
class Measure:
    """One column of the table.

    Attributes:
        what: the measurement, see `benchmarks.ends`.
        num: number of repetitions; few if each takes long.
        unit: unit of the cells: ``us``, ``k/s``, ``GB/s`` or ``%``.
    """

    title: str
    what: str
    num: int
    nbytes: int
    unit: str

    @property
    def moves_bytes(self) -> bool:
        return self.unit == "GB/s"

    @property
    def smaller_is_better(self) -> bool:
        return self.unit in ("us", "%")

    def cell(self, value: float) -> float:
        """An end's result in the unit of the column."""
        if self.unit == "us":
            return value * 1e6
        if self.unit == "k/s":
            return self.num / value / 1e3
        if self.unit == "%":
            return value * 100
        return self.num * self.nbytes / value / 1e9


MEASURES = (
    Measure("64 B", "ping", 1000, 64, "us"),
    Measure("1 KiB", "ping", 1000, 1024, "us"),
    Measure("64 KiB", "ping", 300, 64 * 1024, "us"),
    Measure("frames", "pour", 20_000, 64, "k/s"),
    Measure("1 MiB", "pour", 32, MIB, "GB/s"),
    Measure("16 MiB", "pour", 4, 16 * MIB, "GB/s"),
    Measure("256 MiB", "pour", 1, 256 * MIB, "GB/s"),
    Measure("get", "fetch", 2, 64 * MIB, "GB/s"),
    Measure("put", "store", 2, 64 * MIB, "GB/s"),
    Measure("idle", "idle", 1, 0, "%"),
)


@dataclass(frozen=True)
class Goal:
    """A goal for a cell: a number, or a multiple of a floor's cell in the same round."""

    row: str
    title: str
    limit: float
    floor: str = ""

    def judge(self, table: Table) -> tuple[str, bool] | None:
        """The goal with the result as text, and whether it was reached; None without a result."""
        measure = next(measure for measure in MEASURES if measure.title == self.title)
        ours = table.rounds.get((self.row, self.title))
        if not ours:
            return None
        sign = "<=" if measure.smaller_is_better else ">="
        if self.floor:
            floors = table.rounds.get((self.floor, self.title))
            if not floors:
                return None
            found = statistics.median(one / other for one, other in zip(ours, floors, strict=False))
            wanted, unit = f"{sign} {self.limit:g} x {_NAMES[self.floor]}", "x"
            ours_s, floors_s = (table.cpu_s.get((row, self.title)) for row in (self.row, self.floor))
            if ours_s and floors_s:
                by_cpu = statistics.median(other / one for one, other in zip(ours_s, floors_s, strict=False))
                unit = f"x, by CPU time {by_cpu:.2f} x"
        else:
            found = min(ours) if measure.smaller_is_better else max(ours)
            wanted, unit = f"{sign} {self.limit:g} {measure.unit}", measure.unit
        reached = found <= self.limit if measure.smaller_is_better else found >= self.limit
        what = "round trip of " if measure.what == "ping" else ""
        return f"{_NAMES[self.row]}: {what}{self.title} {wanted}: {found:.2f} {unit}", reached


GOALS = (
    Goal("ucx-shm-spin", "64 B", 8),
    Goal("ucx-shm-spin", "64 B", 0.25, "pipe"),
    Goal("ucx-shm", "64 B", 1.5, "pipe"),
    Goal("ucx-tcp-spin", "64 B", 2, "perftest-tcp"),
    Goal("tcp-spin", "64 B", 1.5, "socket"),
    Goal("tcp", "64 B", 1.5, "socket"),
    Goal("ucx-shm-spin", "256 MiB", 5),
    Goal("ucx-tcp-spin", "256 MiB", 2.5),
    Goal("ucx-tcp-spin", "256 MiB", 0.8, "perftest-tcp"),
    Goal("ucx-tcp-spin", "get", 0.8, "perftest-tcp"),
    Goal("tcp", "256 MiB", 0.6, "socket"),
    Goal("tcp", "get", 0.6, "socket"),
    Goal("tcp", "put", 0.6, "socket"),
    Goal("ucx-shm-spin", "frames", 300),
    Goal("ucx-tcp-spin", "frames", 120),
    *(Goal(row, "idle", 0.5) for row in OURS),
)


class Table:
    """The results: one number for each row, column and round.

    Attributes:
        rounds: cells by row and title of the column.
        tails: the same for p99, if measured.
        cpu_s: the same for the CPU time of both processes, if measured.
    """

    def __init__(self) -> None:
        self.rounds: dict[tuple[str, str], list[float]] = {}
        self.tails: dict[tuple[str, str], list[float]] = {}
        self.cpu_s: dict[tuple[str, str], list[float]] = {}

    def add(self, row: str, measure: Measure, found: dict[str, float]) -> None:
        """Add one round of one cell."""
        self.rounds.setdefault((row, measure.title), []).append(measure.cell(found["value"]))
        if "cpu" in found:
            self.cpu_s.setdefault((row, measure.title), []).append(found["cpu"])
        if "p99" in found:
            self.tails.setdefault((row, measure.title), []).append(measure.cell(found["p99"]))

    def text(self, row: str, measure: Measure) -> str:
        """The text of one cell."""
        values = self.rounds.get((row, measure.title))
        if not values:
            return "-"
        best = min(values) if measure.smaller_is_better else max(values)
        shown = f"{best:.0f}" if best >= 100 else f"{best:.1f}" if best >= 10 else f"{best:.2f}"
        tails = self.tails.get((row, measure.title))
        return f"{shown} / {statistics.median(tails):.0f}" if tails else shown

    def print(self, rows: list[str]) -> None:
        """Print the table, one line per row."""
        heads = ["" if measure.what != "ping" else "p50/p99" for measure in MEASURES]
        lines = [
            ["", *(measure.title for measure in MEASURES)],
            ["", *(f"{head} {measure.unit}".strip() for head, measure in zip(heads, MEASURES, strict=True))],
            *([_NAMES[row], *(self.text(row, measure) for measure in MEASURES)] for row in rows),
        ]
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        for line in lines:
            cells = [
                text.ljust(width) if not at else text.rjust(width)
                for at, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())


def start(row: str, cpus: tuple[int, int] | None) -> Pair | Perftest:
    """Start the processes of a row."""
    if row.startswith("perftest-"):
        return Perftest(row.removeprefix("perftest-"), cpus)
    return Pair(row, cpus)


def run(rows: list[str], rounds: int, cpus: tuple[int, int] | None, say: Callable[[str], None]) -> Table:
    """Measure *rows*, all of them in each round of each column."""
    table = Table()
    pairs: dict[str, Pair | Perftest] = {}
    try:
        for row in rows:
            try:
                pairs[row] = start(row, cpus)
            except Gone as error:
                print(f"{_NAMES[row]}: left out: {error}", flush=True)
        for measure in MEASURES:
            able = list(pairs)
            for number in range(0 if measure.moves_bytes else 1, 2 if measure.unit == "%" else rounds + 1):
                for row in list(able):
                    say(f"{measure.title}, round {number} of {rounds}: {_NAMES[row]}")
                    try:
                        found = pairs[row].measure(measure.what, measure.num if number else 1, measure.nbytes)
                        if number:
                            table.add(row, measure, found)
                    except Gone as error:
                        able.remove(row)
                        if str(error) not in ("no such thing", "no get", "no put"):
                            print(f"{_NAMES[row]}: no {measure.title}: {error}", flush=True)
    finally:
        for pair in pairs.values():
            pair.close()
    return table


def main() -> int:
    """Measure, print the table and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", choices=(*OURS, *FLOORS), default=[*OURS, *FLOORS], metavar="ROW")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    cpus = (cores[0], cores[1]) if len(cores) > 1 else None

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    table = run(arguments.rows, arguments.rounds, cpus, say)
    say("\r")
    print(f"{len(cores)} cores, {'one for each process' if cpus else 'shared by both processes'}\n")
    table.print([row for row in arguments.rows if any(key[0] == row for key in table.rounds)])
    print()
    judged = [found for found in (goal.judge(table) for goal in GOALS) if found is not None]
    for words, reached in judged:
        print(f"{'reached' if reached else 'MISSED ':8} {words}")
    return 0 if all(reached for _, reached in judged) else 1


if __name__ == "__main__":
    sys.exit(main())
