"""Compares what monarch-hpc tells of a run, and what that costs, with peers in one run on this machine.

    python -m benchmarks.seeing_peers --install          # once: an environment for each peer, 1.2 GB
    python -m benchmarks.seeing_peers                    # about fifteen minutes
    python -m benchmarks.seeing_peers --peers torchmonarch --calls 10000 --rounds 5

Echo is measured by two programs of each product, one of which records, in turns: by the CPU time of caller and callee,
as the time on the wall depends on where the kernel wakes them. A slowdown is what recording adds: the median of the
rounds, ours without spinning. Rounds differ by more than that on a busy machine, as the quartiles beside it show. Exit
code 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import recorder
from benchmarks.programs import SEEING_PACKAGES, Died, Gone, Program, cache, find_python, install
from benchmarks.seeing_ends.end import FAULTS
from monarch_hpc.telemetry.recorder import Recorder

_ENDS = "benchmarks.seeing_ends"
_NUM_ECHOES = 1000
_NUM_ACTORS = 64
_START_S = 120.0
_FILL_S = 3600.0
"""A million calls take torchmonarch a quarter of an hour on two busy cores."""
_LIST_S = 500.0
_TELL_S = 90.0
_ASK_S = 120.0

_ECHO_ENV = {"ours": {"MONARCH_HPC_FABRIC__SPIN_US": "0"}}
"""Without spinning: whether a wait spins or sleeps changes from round to round, by more than what recording costs."""

Cells = dict[tuple[str, str], float]
"""Values by product and line."""


class Table:
    """The results, with why some are missing."""

    def __init__(self) -> None:
        self.cells: Cells = {}

    def add(self, product: str, title: str, value: float, unit: str, more: str = "") -> None:
        """Add a value, and print it."""
        self.cells[product, title] = value
        print(f"{product:14}{title:44}{value:12.3f} {unit:3} {more}".rstrip(), flush=True)

    def miss(self, product: str, title: str, reason: object) -> None:
        """Print why a value is missing."""
        print(f"{product:14}{title:44}{'-':>12}     {reason}", flush=True)

    def judge(self, title: str, limit: float, peers: list[str]) -> bool:
        """Print how many times the best of *peers* our value is, and whether that is within *limit*."""
        ours = self.cells.get(("ours", title))
        found = {peer: self.cells[peer, title] for peer in peers if (peer, title) in self.cells}
        if ours is None or not found:
            print(f"no result {title}")
            return True
        peer = min(found, key=lambda peer: found[peer])
        reached = ours <= limit * found[peer]
        ratio = f"{ours / found[peer]:.3f} times" if found[peer] > 0 else "nothing that was measurable for"
        print(f"{'reached' if reached else 'MISSED ':9} {title}: {ratio} {peer} (goal {limit:.2f})")
        return reached


def compare_echoes(table: Table, product: str, python: Path, rounds: int) -> None:
    """Measure what recording adds to an echo: two programs, in turns."""
    title, times = "echo: slowdown by recording", {0: list[float](), 1: list[float]()}
    try:
        with ExitStack() as opened:
            env = _ECHO_ENV.get(product, {})
            programs = {on: opened.enter_context(Program(product, python, env, _ENDS)) for on in times}
            for on, program in programs.items():
                program.order("start", on, _START_S)
                program.order("echo", _NUM_ECHOES, _ASK_S)
            for number in range(rounds):
                for on in sorted(times, reverse=number % 2 == 1):
                    times[on].append(program_cpu_us(programs[on]))
    except Gone as error:
        table.miss(product, title, error)
        return
    # What ours records of a call cannot be switched off: that costs, too.
    always_us = sum(recorder.rows(Recorder()).values()) / 1e3 if product == "ours" else 0.0
    added = [(on_us / (off_us - always_us) - 1) * 100 for on_us, off_us in zip(times[1], times[0], strict=True)]
    low, middle, high = statistics.quantiles(added, n=4)
    more = f"half of the rounds {low:.0f} to {high:.0f} %; CPU {statistics.median(times[1]):.0f} us with"
    table.add(product, title, middle, "%", f"{more}, {statistics.median(times[0]):.0f} us without")


def program_cpu_us(program: Program) -> float:
    """CPU time of one echo of a round."""
    return float(program.order("echo", _NUM_ECHOES, _ASK_S)["cpu"]) * 1e6


def ask_questions(table: Table, product: str, python: Path, num_calls: int) -> None:
    """Measure the time until the first answer in SQL, that of a GROUP BY, and the memory of what answers."""

    def order(title: str, what: str, num: int, timeout_s: float) -> dict[str, Any]:
        try:
            return program.order(what, num, timeout_s)
        except Died:
            raise
        except Gone as error:
            table.miss(product, title, error)
            return {}

    try:
        with Program(product, python, {}, _ENDS) as program:
            start_s = float(program.order("start", 1, _START_S)["s"])
            if first := order("first answer in SQL, from the start", "first", 1, _ASK_S):
                table.add(product, "first answer in SQL, from the start", start_s + first["s"], "s")
                table.add(product, "that question alone", first["s"], "s")
                filled = order("calls", "fill", num_calls, _FILL_S)
                if grouped := order("GROUP BY over calls", "group", 1, _ASK_S):
                    more = f"{grouped['rows']} of {num_calls} calls were there, made in {filled['s']:.0f} s"
                    table.add(product, "GROUP BY over calls", grouped["s"], "s", more)
            if memory := order("memory of what answers", "memory", 1, _ASK_S):
                table.add(product, "memory of what answers", memory["bytes"] / 1e6, "MB", f"{memory['num']} processes")
    except Gone as error:
        table.miss(product, "questions", error)


def list_actors(table: Table, product: str, python: Path) -> None:
    """Measure the command that lists actors."""
    title = f"listing {_NUM_ACTORS} actors, as a command"
    try:
        with Program(product, python, {}, _ENDS) as program:
            program.order("start", 1, _START_S)
            listed = program.order("list", _NUM_ACTORS, _LIST_S)
            table.add(product, title, listed["s"], "s", f"{listed['lines']} lines")
    except Gone as error:
        table.miss(product, title, error)


def tell(product: str, python: Path) -> None:
    """Print what is told of a proc to which something happened."""
    for number, fault in enumerate(FAULTS):
        try:
            with Program(product, python, {}, _ENDS) as program:
                program.order("start", 1, _START_S)
                words = str(program.order("tell", number, _TELL_S)["words"])
        except Gone as error:
            words = f"nothing: {error}"
        print(f"{product:14}{fault:16}{words}", flush=True)


def judge(table: Table) -> bool:
    """Print the goals; return whether all that could be judged were reached."""
    goals = (
        ("first answer in SQL, from the start", 1 / 3, ["torchmonarch"]),
        ("GROUP BY over calls", 1 / 2, ["torchmonarch"]),
        ("echo: slowdown by recording", 1 / 2, [*SEEING_PACKAGES]),
        ("memory of what answers", 1 / 2, ["ray"]),
        (f"listing {_NUM_ACTORS} actors, as a command", 1 / 5, ["ray"]),
    )
    reached = [table.judge(*goal) for goal in goals]
    return all(reached)


def main() -> int:
    """Measure, and print values, goals and what is told."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="*", choices=[*SEEING_PACKAGES], default=[*SEEING_PACKAGES], metavar="PEER")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=[*_PARTS], metavar="PART", help=", ".join(_PARTS))
    parser.add_argument("--calls", type=int, default=100_000, help="that a GROUP BY is about: %(default)s")
    parser.add_argument("--rounds", type=int, default=20, help="of echoes: %(default)s")
    parser.add_argument("--install", action="store_true", help="install the missing peers, and exit")
    parser.add_argument("--venvs", type=Path, default=cache(), metavar="DIR", help="folder of peers: %(default)s")
    arguments = parser.parse_args()
    table, pythons = Table(), {"ours": Path(sys.executable)}
    for peer in arguments.peers:
        try:
            if arguments.install:
                install(peer, arguments.venvs)
            pythons[peer] = find_python(peer, arguments.venvs)
        except Gone as error:
            table.miss(peer, "all", error)
    if arguments.install:
        return 0 if len(pythons) == len(arguments.peers) + 1 else 1
    print(f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}")
    for part in arguments.parts:
        for product, python in pythons.items():
            if part == "echo":
                compare_echoes(table, product, python, arguments.rounds)
            elif part == "questions":
                ask_questions(table, product, python, arguments.calls)
            elif part == "list":
                list_actors(table, product, python)
            else:
                tell(product, python)
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0 if judge(table) else 1


_PARTS = ("questions", "list", "echo", "tell")


if __name__ == "__main__":
    sys.exit(main())
