"""Compares the rates at which types of values travel to an actor, and back, with that of a NumPy array.

    python -m benchmarks.values                          # 256 MiB of each type; a minute
    python -m benchmarks.values --mib 64 --rounds 9 --fabric tcp
    python -m benchmarks.values --types numpy bytes torch
    python -m benchmarks.values --types numpy --procs 8  # one array to 8 procs of a host, against one

Each round sends one value of each type, one after the other, so that other load on the machine hits all alike. *One
way* is a call whose actor reads a byte of each page and answers with a number; *echo* a call that returns the value;
*kept* an echo whose caller keeps the result, so that no memory is reused. The first ratio is that of the best rounds,
as load only slows; the second is the median of the ratios within the rounds. Types whose package is missing are left
out. With `--procs`, *cast* compares one message to all of them with one to the first, and the memory that they all take
with the value's size. Exit code 1 if both ratios are below their goal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from operator import truediv
from pathlib import Path
from typing import Any

import numpy as np

import monarch_hpc
from monarch_hpc import Actor, ActorMesh, endpoint

MIB = 2**20
GOALS = {"torch": 0.7, "bytes": 0.7}
"""Lowest ratio to NumPy's rate, one way and echo."""

CAST_GOALS = (2.0, 1.2)
"""Largest time of a cast in calls of one proc, and largest memory in sizes of the value."""

_MODES = ("one way", "echo", "kept")
_PAGE_BYTES = 4096
_PATIENCE_S = 120.0


class Receiver(Actor):
    """Takes values."""

    @endpoint
    def touch(self, value: object) -> int:
        """Read a byte of each page of *value*, as far as it shows its memory."""
        try:
            return int(np.frombuffer(_plain(value), np.uint8)[::_PAGE_BYTES].max())
        except TypeError:
            return 0

    @endpoint
    def echo(self, value: object) -> object:
        """Return *value*."""
        return value

    @endpoint
    def keep(self, value: object) -> int:
        """Keep *value*, after `touch`."""
        self.kept = value
        return int(np.frombuffer(_plain(value), np.uint8)[::_PAGE_BYTES].max())

    @endpoint
    def forget(self) -> None:
        """Let go what was kept."""
        self.kept = None

    @endpoint
    def processes(self) -> list[int]:
        """This process, and those above it: its zygote, and its agent or the program."""
        return [os.getpid(), *_above(os.getpid())]


def _above(pid: int) -> list[int]:
    found: list[int] = []
    while len(found) < 2 and pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return [pid for pid in found if b"monarch_hpc" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def memory_of(pids: set[int]) -> int:
    """Bytes that these processes take together: what several map counts once."""
    lines = (line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def _plain(value: Any) -> Any:
    return value.numpy() if hasattr(value, "numpy") and hasattr(value, "storage_offset") else value


def _torch(num_bytes: int) -> object:
    import torch

    return torch.ones(num_bytes // 4)


def _pandas(num_bytes: int) -> object:
    import pandas

    columns = np.ones((8, num_bytes // 64))
    return pandas.DataFrame({f"c{at}": column for at, column in enumerate(columns)})


def _arrow(num_bytes: int) -> object:
    import pyarrow

    column = pyarrow.array(np.ones(num_bytes // 64))
    return pyarrow.table({f"c{at}": column for at in range(8)})


TYPES: dict[str, Callable[[int], object]] = {
    "numpy": lambda num_bytes: np.ones(num_bytes // 4, np.float32),
    "torch": _torch,
    "bytes": lambda num_bytes: b"x" * num_bytes,
    "bytearray": lambda num_bytes: bytearray(b"x") * num_bytes,
    "memoryview": lambda num_bytes: memoryview(b"x" * num_bytes),
    "str": lambda num_bytes: "x" * num_bytes,
    "pandas": _pandas,
    "arrow": _arrow,
}


def measure(receiver: ActorMesh[Receiver], value: object, mode: str, kept: dict[str, object], name: str) -> float:
    """Send *value* once; return the seconds."""
    call = receiver.touch if mode == "one way" else receiver.echo
    if mode != "kept":
        kept.pop(name, None)
    begun_s = time.perf_counter()
    returned = call.call_one(value).get(_PATIENCE_S)
    took_s = time.perf_counter() - begun_s
    if mode == "kept":
        kept[name] = returned
    return took_s


def measure_cast(receivers: ActorMesh[Receiver], value: object, num_bytes: int, rounds: int) -> bool:
    """Print time and memory of one message to all *receivers*; return whether both are within their goals."""
    first = receivers.slice(p=0)
    pids = {os.getpid(), *(pid for some in receivers.processes.call().get(_PATIENCE_S).values() for pid in some)}
    one_s, all_s, memory = [], [], []
    for number in range(rounds + 1):
        begun_s = time.perf_counter()
        first.keep.call_one(value).get(_PATIENCE_S)
        between_s = time.perf_counter()
        first.forget.call_one().get(_PATIENCE_S)
        before = memory_of(pids)
        cast_s = time.perf_counter()
        receivers.keep.call(value).get(_PATIENCE_S)
        ended_s = time.perf_counter()
        used = memory_of(pids) - before
        receivers.forget.call().get(_PATIENCE_S)
        if number:  # the first round warms up
            one_s.append(between_s - begun_s)
            all_s.append(ended_s - cast_s)
            memory.append(used / num_bytes)
    ratio = min(min(all_s) / min(one_s), statistics.median(map(truediv, all_s, one_s)))
    print(
        f"cast to {len(receivers)} procs: {min(all_s):.3f} s, to one: {min(one_s):.3f} s, {ratio:.2f}x; "
        f"memory {statistics.median(memory):.2f}x the value"
    )
    return ratio <= CAST_GOALS[0] and statistics.median(memory) <= CAST_GOALS[1]


def main() -> int:
    """Measure, print the table, and compare with the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of each value; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--fabric", choices=("ucx", "tcp"), default="ucx", help="default %(default)s")
    parser.add_argument("--types", nargs="+", choices=tuple(TYPES), default=tuple(TYPES))
    parser.add_argument("--procs", type=int, default=0, help="number of procs of a cast; default: no cast")
    options = parser.parse_args()
    if options.fabric == "tcp":
        os.environ["MONARCH_HPC_FABRIC__ORDER"] = "[tcp]"
    values: dict[str, object] = {}
    for name in dict.fromkeys(("numpy", *options.types)):
        try:
            values[name] = TYPES[name](options.mib * MIB)
        except ImportError as error:
            print(f"{name}: {error}")
    print(f"{options.mib} MiB over {options.fabric}: GB/s, best of {options.rounds}, and the ratios to NumPy's")
    print("".join([f"{'':8}", *(f"{name:>20}" for name in values)]))
    missed = False
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs(per_host={"p": 1}) as procs:
        receiver = procs.spawn("receiver", Receiver)
        for mode in _MODES:
            kept: dict[str, object] = {}
            rates: dict[str, list[float]] = {name: [] for name in values}
            for number in range(options.rounds + 1):
                for name, value in values.items():
                    took_s = measure(receiver, value, mode, kept, name)
                    if number:  # the first round warms up
                        moved_bytes = (1 if mode == "one way" else 2) * options.mib * MIB
                        rates[name].append(moved_bytes / took_s / 1e9)
            best = {name: max(found) / max(rates["numpy"]) for name, found in rates.items()}
            middle = {name: statistics.median(map(truediv, found, rates["numpy"])) for name, found in rates.items()}
            missed |= mode != "kept" and any(max(best[name], middle[name]) < GOALS.get(name, 0.0) for name in values)
            cells = [f"{max(rates[name]):.2f} ({best[name]:.2f}x {middle[name]:.2f}x)" for name in values]
            print("".join([f"{mode:8}", *(f"{cell:>20}" for cell in cells)]), flush=True)
        if options.procs:
            with hosts.spawn_procs(per_host={"p": options.procs}) as many:
                receivers = many.spawn("receiver", Receiver)
                missed |= not measure_cast(receivers, values["numpy"], options.mib * MIB, options.rounds)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
