"""Compares the speed of monarch-hpc's actors with that of its peers, in one run on this machine.

    python -m benchmarks.actors --install                # once: an environment for each peer, 2 GB
    python -m benchmarks.actors                          # everything; about ten minutes
    python -m benchmarks.actors --peers torchmonarch ray
    python -m benchmarks.actors --peers none --quick     # ours only, one short round
    python -m benchmarks.actors --crowd 10000            # and as many actors in one proc

In each round each program is started, measured and ended, one after the other, so that other load on the machine hits
all alike and no program's background processes disturb another. All features of our calls are on. The table shows the
best round (for p99 the median one), and beside a peer's cell how many times better ours is: the median of the ratios
within the rounds. Exit code 1 if a goal was missed, unless --quick.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from benchmarks import recorder
from benchmarks.programs import PACKAGES, Died, Gone, Program, cache, find_python, install
from monarch_hpc.telemetry.recorder import Recorder

MIB = 2**20
PEERS = tuple(PACKAGES)
_ENV = {"ours-asleep": {"MONARCH_HPC_FABRIC__SPIN_US": "0"}}
"""Our additional rows, with the variables set for them."""
OURS = ("ours", *_ENV)


@dataclass(frozen=True)
class Order:
    """One step of a program's measurement.

    Attributes:
        what: see `benchmarks.actor_ends`.
        num: number of calls or procs.
        quick: the same with ``--quick``.
        slow: the same for peers that take a millisecond per call; 0 for *num*.
        cells: title and unit of a line of the table, by key of the program's result.
    """

    what: str
    num: int
    quick: int
    slow: int
    cells: dict[str, tuple[str, str]]


ORDERS = (
    Order("start", 1, 1, 0, {"s": ("start, first answer", "ms")}),
    Order(
        "echo",
        5000,
        200,
        1000,
        {"p50": ("echo, p50", "us"), "p99": ("echo, p99", "us"), "cpu": ("echo, CPU of both sides", "us")},
    ),
    Order(
        "pipeline", 20_000, 1000, 3000, {"rate": ("pipelined calls", "k/s"), "cpu": ("pipelined, CPU of both", "us")}
    ),
    Order("stop", 1, 1, 0, {}),
    Order(
        "crowd",
        1000,
        1000,
        0,
        {
            "waiting": ("echo of a coroutine, p50", "us"),
            "s": ("1000 actors in a proc, answering", "ms"),
            "cpu": ("one of 1000, CPU of both sides", "us"),
            "each": ("memory of an idle actor", "KiB"),
            "ratio": ("echo beside them, times alone", "x"),
            "waiting_ratio": ("echo of a coroutine, likewise", "x"),
        },
    ),
    Order("chat", 3000, 100, 1000, {"p50": ("actor to actor, p50", "us"), "p99": ("actor to actor, p99", "us")}),
    Order("spawn", 8, 8, 0, {"s": ("8 procs and actors, answering", "ms")}),
    Order(
        "memory",
        1,
        1,
        0,
        {"uss": ("memory of an idle proc, USS", "MiB"), "over": ("the same, over the zygote's", "MiB")},
    ),
    Order("call", 1000, 50, 300, {"p50": ("call on 8, p50", "us"), "p99": ("call on 8, p99", "us")}),
    Order("stop", 1, 1, 0, {}),
    # The last ones: Dragon cannot make pipes in memory that held an array, nor torch a world after a death.
    Order("push", 5, 1, 0, {"rate": ("256 MiB array", "GB/s")}),
    Order("stop", 1, 1, 0, {}),
    Order("kill", 20, 2, 1, {"p99": ("SIGKILL to error, p99", "ms")}),
    Order("segfault", 20, 2, 1, {"p99": ("segfault to error, p99", "ms")}),
    Order("exit", 20, 2, 1, {"p99": ("os._exit to error, p99", "ms")}),
)
_LAST = 4
"""Orders after those of larger meshes."""
FAN_OUTS = {
    size: (
        Order("spawn", size, size, 0, {"s": (f"{size} procs and actors, answering", "ms")}),
        Order("call", 500, 20, 100, {"p50": (f"call on {size}, p50", "us"), "p99": (f"call on {size}, p99", "us")}),
        Order("stop", 1, 1, 0, {}),
    )
    for size in (16, 32, 64)
}
"""Measurements of larger meshes, on request."""

CROWDS = {
    size: Order(
        "crowd",
        size,
        size,
        0,
        {
            "s": (f"{size} actors in a proc, answering", "ms"),
            "cpu": (f"one of {size}, CPU of both sides", "us"),
            "each": (f"memory of one of {size}", "KiB"),
            "ratio": (f"echo beside {size}, times alone", "x"),
            "waiting_ratio": (f"echo of a coroutine beside {size}", "x"),
        },
    )
    for size in (10_000,)
}
"""Measurements of more actors in a proc, on request; the last ones, as a peer may not survive them."""

_ASLEEP = ORDERS[:4]
"""Measurements in which it matters whether our procs spin: two processes, not many on few cores."""

_SCALES = {"us": 1e6, "ms": 1e3, "k/s": 1e-3, "GB/s": 1e-9, "KiB": 1 / 1024, "MiB": 1 / MIB, "x": 1.0}
UNITS = {
    title: unit for order in chain(ORDERS, *FAN_OUTS.values(), CROWDS.values()) for title, unit in order.cells.values()
}


def smaller_is_better(title: str) -> bool:
    """Whether a line shows time or memory instead of a rate."""
    return not UNITS[title].endswith("/s")


class Table:
    """The results: one number for each program, line and round.

    Attributes:
        cells: values by program, title and round.
        missing: why a line of a program is missing; the key "" stands for the whole program.
    """

    def __init__(self) -> None:
        self.cells: dict[tuple[str, str], dict[int, float]] = {}
        self.missing: dict[str, dict[str, str]] = {}

    def add(self, row: str, title: str, number: int, value: float) -> None:
        """Add one cell of one round."""
        self.cells.setdefault((row, title), {})[number] = value * _SCALES[UNITS[title]]

    def best(self, row: str, title: str) -> float | None:
        """The value shown in the table."""
        values = list(self.cells.get((row, title), {}).values())
        if not values:
            return None
        if title.endswith("p99"):
            return statistics.median(values)
        return min(values) if smaller_is_better(title) else max(values)

    def ratio(self, row: str, peer: str, title: str) -> float | None:
        """How many times better *row* is than *peer*: the median over the rounds with both."""
        ours, theirs = self.cells.get((row, title), {}), self.cells.get((peer, title), {})
        smaller = smaller_is_better(title)
        ratios = [
            theirs[number] / ours[number] if smaller else ours[number] / theirs[number]
            for number in ours
            if number in theirs
        ]
        return statistics.median(ratios) if ratios else None

    def print(self, rows: list[str]) -> None:
        """Print the table: a line for each measurement, a column for each program."""
        lines = [["", "", *rows]]
        for title, unit in UNITS.items():
            cells = [self._text(row, title, rows[0]) for row in rows]
            if any(cells):
                lines.append([title, unit, *(cell or "-" for cell in cells)])
        widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
        for line in lines:
            cells = [
                text.ljust(width) if at < 2 else text.rjust(width)
                for at, (text, width) in enumerate(zip(line, widths, strict=True))
            ]
            print("  ".join(cells).rstrip())
        for row, reasons in self.missing.items():
            for title, reason in reasons.items():
                print(f"{row}: {'' if not title else f'no {title}: '}{reason}")

    def _text(self, row: str, title: str, first: str) -> str:
        best = self.best(row, title)
        if best is None:
            return ""
        ratio = None if row in OURS else self.ratio(first, row, title)
        return _short(best) if ratio is None else f"{_short(best)} ({_short(ratio)}x)"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


@dataclass(frozen=True)
class Goal:
    """A goal for one of our cells: a number, or a multiple of a peer's cell in the same round.

    Attributes:
        times: how many times better than *peer*, or than each peer with "any"; 0 if *limit* is the goal.
    """

    title: str
    limit: float = 0.0
    times: float = 0.0
    peer: str = ""
    row: str = "ours"

    def judge(self, table: Table) -> tuple[str, bool] | None:
        """The goal with the result as text, and whether it was reached; None without a result."""
        if not self.times:
            best = table.best(self.row, self.title)
            if best is None:
                return None
            smaller, unit = smaller_is_better(self.title), UNITS[self.title]
            words = f"{self.row}: {self.title} {'<=' if smaller else '>='} {self.limit:g} {unit}: {_short(best)} {unit}"
            return words, best <= self.limit if smaller else best >= self.limit
        peers = PEERS if self.peer == "any" else [self.peer]
        ratios = {peer: ratio for peer in peers if (ratio := table.ratio(self.row, peer, self.title)) is not None}
        if not ratios:
            return None
        peer = min(ratios, key=lambda peer: ratios[peer])
        words = f"{self.row}: {self.title} {self.times:g} times better than {peer}: {_short(ratios[peer])} times"
        return words, ratios[peer] >= self.times


GOALS = (
    Goal("echo, p50", limit=20),
    Goal("echo, p50", times=30, peer="torchmonarch"),
    Goal("echo, p50", times=8, peer="torchmonarch", row="ours-asleep"),
    Goal("pipelined calls", limit=100),
    Goal("pipelined calls", times=30, peer="torchmonarch"),
    Goal("pipelined calls", times=10, peer="dragon"),
    Goal("call on 8, p50", limit=250),
    Goal("call on 8, p50", times=10, peer="torchmonarch"),
    Goal("call on 8, p50", times=5, peer="xoscar"),
    Goal("8 procs and actors, answering", limit=150),
    Goal("8 procs and actors, answering", times=8, peer="torchmonarch"),
    Goal("1000 actors in a proc, answering", limit=1000),
    Goal("memory of an idle actor", limit=32),
    Goal("echo beside them, times alone", limit=1.2),
    Goal("echo of a coroutine, likewise", limit=1.2),
    Goal("256 MiB array", times=2, peer="any"),
    Goal("the same, over the zygote's", limit=10),
    Goal("SIGKILL to error, p99", limit=50),
    Goal("segfault to error, p99", limit=50),
    Goal("os._exit to error, p99", limit=50),
)


def measure(table: Table, row: str, number: int, python: Path, orders: Sequence[Order], *, quick: bool) -> None:
    """Start, measure and end one program.

    Raises:
        Gone: it does not start, or has died.
    """
    ours = row in OURS
    with Program("ours" if ours else row, python, _ENV.get(row, {})) as program:
        for order in _ASLEEP if row in _ENV else orders:
            num = order.num if ours else order.slow or order.num
            if quick:
                num = min(num, order.quick)
            try:
                found = program.order(order.what, num)
            except Gone as error:
                if order.what == "start":
                    raise
                table.missing.setdefault(row, {})[order.what] = str(error)
                if isinstance(error, Died):
                    return
                continue
            for key, (title, _) in order.cells.items():
                if key in found:
                    table.add(row, title, number, found[key])


def main() -> int:
    """Measure, print the table and the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=(*PEERS, "none"), default=list(PEERS), metavar="PEER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--fan-out", nargs="+", type=int, choices=FAN_OUTS, default=[], metavar="PROCS")
    parser.add_argument("--crowd", nargs="+", type=int, choices=CROWDS, default=[], metavar="ACTORS")
    parser.add_argument("--install", action="store_true", help="install the missing peers, and exit")
    parser.add_argument("--venvs", type=Path, default=cache(), metavar="DIR", help="folder of peers: %(default)s")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="a peer's interpreter")
    arguments = parser.parse_args()
    peers = [peer for peer in arguments.peers if peer != "none"]
    given = dict(item.split("=", 1) for item in arguments.python)

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    if arguments.install:
        return _install([peer for peer in peers if peer not in given], arguments.venvs)
    rows, absent = [*OURS], {}
    pythons = {row: Path(sys.executable) for row in OURS}
    for peer in peers:
        try:
            pythons[peer] = Path(given[peer]) if peer in given else find_python(peer, arguments.venvs)
            rows.append(peer)
        except Gone as error:
            absent[peer] = {"": str(error)}
    fan_outs = chain(*(FAN_OUTS[size] for size in arguments.fan_out))
    orders = [*ORDERS[:-_LAST], *fan_outs, *ORDERS[-_LAST:], *(CROWDS[size] for size in arguments.crowd)]
    table, able = Table(), list(rows)
    rounds = 1 if arguments.quick else arguments.rounds
    for number in range(rounds):
        for row in list(able):
            say(f"round {number + 1} of {rounds}: {row}")
            try:
                measure(table, row, number, pythons[row], orders, quick=arguments.quick)
            except Gone as error:
                able.remove(row)
                table.missing.setdefault(row, {})[""] = str(error)
    table.missing.update(absent)
    say("\r")
    load = os.getloadavg()[0]
    print(f"{len(os.sched_getaffinity(0))} cores, load {load:.1f}; (x): how many times better ours is\n")
    table.print([*rows, *absent])
    print()
    judged = [found for found in (goal.judge(table) for goal in GOALS) if found is not None]
    judged.append(_judge_records())
    for words, reached in judged:
        print(f"{'reached' if reached else 'MISSED ':8} {words}")
    return 0 if arguments.quick or all(reached for _, reached in judged) else 1


def _judge_records() -> tuple[str, bool]:
    """Judge the cost of a call's records, on both sides and for a waiting thread; they cannot be switched off."""
    cost_us = sum(recorder.rows(Recorder()).values()) / 1e3
    return f"ours: telemetry events of a call, in both processes <= 1 us: {cost_us:.2f} us", cost_us <= 1


def _install(peers: list[str], folder: Path) -> int:
    failed = 0
    for peer in peers:
        if peer == "torch-rpc" and find_spec("torch"):
            continue
        print(f"{peer}: {', '.join(PACKAGES[peer])} into {folder / peer}", flush=True)
        try:
            install(peer, folder)
        except Gone as error:
            failed = 1
            print(f"{peer}: {error}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(main())
