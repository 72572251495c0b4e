"""Compares one-sided memory on one host with a copy, with UCX's own get and put, and with its peers, in one run.

    python -m benchmarks.rdma --install                  # once: an environment for each peer
    python -m benchmarks.rdma                            # 256 MiB; about three minutes
    python -m benchmarks.rdma --peers none --mib 64 --rounds 9

In each of several passes all take turns, so that other load on the machine hits all alike. The table has GB/s of a get
and of a put in the best round, as load only slows, and in brackets how many times better ours is: the median of the
passes' ratios, each of the best rounds of a pass. Below it are the latency of a small read beside that of a call, a
list of pieces, first and again, and the registration of many arrays beside that of one, with the time in which the
kernel pins a GiB, as a registration for RDMA does. Exit code 1 if a goal was missed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

import monarch_hpc
from benchmarks.pairs import Gone, Perftest
from benchmarks.programs import MEMORY_PACKAGES, cache, find_python, install
from benchmarks.programs import Gone as NotInstalled
from monarch_hpc import Actor, ActorMesh, endpoint
from monarch_hpc.rdma import RDMAAction, RDMABuffer, RDMAState, empty

_Made = TypeVar("_Made")

MIB = 2**20
PEERS = ("ucx", "ucx_tcp", "tcp", "perftest", "perftest_private", "perftest_tcp", *MEMORY_PACKAGES)
GOALS = {"ucx": 0.9, "perftest_private": 0.9, "torchmonarch": 5.0, "nixl": 2.0}
"""Lowest ratio of our get to that of a peer."""

_SHARED = "ours, rdma.empty"
PAIR_GOALS = {(_SHARED, "perftest"): 0.9, (_SHARED, "memcpy"): 0.8, ("ucx_tcp", "perftest_tcp"): 0.8}
"""Lowest ratio of a get of the first to that of the second."""

_OWN = ("ucx", "ucx_tcp", "tcp")
"""Our own buffers, carried over these fabrics."""

_PIECES_S = 0.5
"""Longest time of a list there."""

_PIECES, _PIECE_BYTES = 10_000, 4096
_TENSORS, _TENSOR_BYTES = 1300, 2**30 // 1300
_ECHOES = 500
_PASSES = 3
_PATIENCE_S = 120.0
_ROOT = Path(__file__).parents[1]


class Owner(Actor):
    """Lends memory."""

    @endpoint
    def share(self, num_bytes: int, shared: bool = False) -> RDMABuffer:
        """A buffer of sevens; *shared*: in memory that others can map."""
        self._data = empty(num_bytes, np.uint8) if shared else np.empty(num_bytes, np.uint8)
        self._data[:] = 7
        return RDMABuffer(self._data)

    @endpoint
    def echo(self, value: int) -> int:
        """Return *value*."""
        return value

    @endpoint
    def register(self, num: int, num_bytes: int) -> tuple[float, float]:
        """Register *num* arrays as one state, and again; return the CPU seconds of both."""
        tree = {f"layers.{number}": np.empty(num_bytes, np.uint8) for number in range(num)}
        first_s, first = _timed(lambda: RDMAState(tree))
        again_s, again = _timed(lambda: RDMAState(tree))
        for state in (first, again):
            state.drop().get(_PATIENCE_S)
        return first_s, again_s

    @endpoint
    def pin(self, num_bytes: int) -> float | None:
        """CPU seconds in which the kernel pins so many bytes of written pages of 4 KiB; None if it refuses."""
        pages = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_NOHUGEPAGE)
        data = np.frombuffer(pages, np.uint8)
        data[:] = 1
        span = ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(num_bytes)
        libc = ctypes.CDLL(None)
        took_s, refused = _timed(lambda: libc.mlock(*span))
        libc.munlock(*span)
        return None if refused else took_s


def _timed(what: Callable[[], _Made]) -> tuple[float, _Made]:
    begun_s = time.thread_time()
    made = what()
    return time.thread_time() - begun_s, made


def best_of(num_rounds: int, what: Callable[[], object]) -> float:
    """The shortest time of *what*, in seconds; a first one warms up."""
    what()
    times_s = []
    for _ in range(num_rounds):
        begun_s = time.perf_counter()
        what()
        times_s.append(time.perf_counter() - begun_s)
    return min(times_s)


def measure_copy(num_bytes: int, num_rounds: int) -> float:
    """Seconds of a copy within this process."""
    source, target = np.full(num_bytes, 7, np.uint8), np.zeros(num_bytes, np.uint8)
    return best_of(num_rounds, lambda: np.copyto(target, source))


def measure_ours(
    owner: ActorMesh[Owner], num_bytes: int, num_rounds: int, *, shared: bool = False
) -> tuple[dict[str, float], str]:
    """Seconds of a get and a put of *num_bytes*, and what carried them."""
    buffer = owner.share.call_one(num_bytes, shared).get(_PATIENCE_S)
    here = np.zeros(num_bytes, np.uint8)
    found = {
        "get": best_of(num_rounds, lambda: buffer.read_into(here).get(_PATIENCE_S)),
        "put": best_of(num_rounds, lambda: buffer.write_from(here).get(_PATIENCE_S)),
    }
    assert (here == 7).all()
    path = buffer.path().get(_PATIENCE_S)
    buffer.drop().get(_PATIENCE_S)
    return found, path


def measure_latency(owner: ActorMesh[Owner]) -> tuple[float, float]:
    """Median seconds of a read of 4 KiB, and of a call; they take turns, so that other load hits both."""
    buffer = owner.share.call_one(_PIECE_BYTES).get(_PATIENCE_S)
    here = np.zeros(_PIECE_BYTES, np.uint8)
    reads_s, calls_s = [], []
    for number in range(_ECHOES):
        begun_s = time.perf_counter()
        buffer.read_into(here).get(_PATIENCE_S)
        read_s = time.perf_counter()
        owner.echo.call_one(number).get(_PATIENCE_S)
        reads_s.append(read_s - begun_s)
        calls_s.append(time.perf_counter() - read_s)
    return statistics.median(reads_s), statistics.median(calls_s)


def measure_pieces(owner: ActorMesh[Owner], num_rounds: int) -> tuple[float, float]:
    """Seconds of the first submission of a list of pieces that lie apart, and the best of later ones."""
    buffer = owner.share.call_one(2 * _PIECES * _PIECE_BYTES).get(_PATIENCE_S)
    here = np.zeros((_PIECES, _PIECE_BYTES), np.uint8)
    action = RDMAAction()
    for number in range(_PIECES):
        action.read_remote(here[number], buffer[2 * number * _PIECE_BYTES : (2 * number + 1) * _PIECE_BYTES])
    begun_s = time.perf_counter()
    action.submit().get(_PATIENCE_S)
    first_s = time.perf_counter() - begun_s
    again_s = best_of(num_rounds, lambda: action.submit().get(_PATIENCE_S))
    assert (here == 7).all()
    return first_s, again_s


def measure_registrations(owner: ActorMesh[Owner], num_passes: int) -> tuple[float, float, float, float | None]:
    """Median CPU seconds of a state of one array, of many, again, and of the kernel that pins as much."""
    ones_s, manys_s, sames_s, pins_s = [], [], [], []
    for _ in range(num_passes):
        ones_s.append(owner.register.call_one(1, _TENSORS * _TENSOR_BYTES).get(_PATIENCE_S)[0])
        many_s, same_s = owner.register.call_one(_TENSORS, _TENSOR_BYTES).get(_PATIENCE_S)
        manys_s.append(many_s)
        sames_s.append(same_s)
        pins_s.append(owner.pin.call_one(_TENSORS * _TENSOR_BYTES).get(_PATIENCE_S))
    pinned_s = [one for one in pins_s if one is not None]
    pin_s = statistics.median(pinned_s) if pinned_s else None
    return statistics.median(ones_s), statistics.median(manys_s), statistics.median(sames_s), pin_s


def measure_peer(peer: str, num_bytes: int, num_rounds: int, venvs: Path) -> dict[str, float]:
    """Seconds of a get and a put of a peer.

    Raises:
        Gone, NotInstalled: it cannot be measured here.
    """
    if peer.startswith("perftest"):
        test = Perftest(peer.partition("_")[2] or "shm", None)
        # Its rounds are one after the other, without pauses; the best of three runs counts.
        runs = {"get": "fetch", "put": "store"}
        return {
            what: min(test.measure(run, num_rounds, num_bytes)["value"] for _ in range(3)) / num_rounds
            for what, run in runs.items()
        }
    python = Path(sys.executable) if peer in _OWN else find_python(peer, venvs)
    argv = [str(python), "-m", f"benchmarks.memory_ends.{peer}_end"]
    if peer == "mpi":  # MPICH's wheel brings its launcher
        argv = [str(python.with_name("mpiexec")), "-n", "2", *argv]
    try:
        done = subprocess.run(
            [*argv, str(num_bytes), str(num_rounds)],
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
        )
    except subprocess.TimeoutExpired:
        raise Gone(f"it did not end in {_PATIENCE_S:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise Gone(done.stderr.strip().rpartition("\n")[2] or f"it printed nothing (status {done.returncode})")
    found_s: dict[str, float] = json.loads(lines[-1])
    return found_s


def main() -> int:
    """Measure, print the table, and compare with the goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256, help="size of a transfer; default %(default)s")
    parser.add_argument("--rounds", type=int, default=5, help="in each pass; default %(default)s")
    parser.add_argument("--passes", type=int, default=_PASSES, help="default %(default)s")
    parser.add_argument("--peers", nargs="+", choices=(*PEERS, "none"), default=PEERS)
    parser.add_argument("--install", action="store_true", help="install the missing peers, and exit")
    parser.add_argument("--venvs", type=Path, default=cache(), metavar="DIR", help="folder of peers: %(default)s")
    options = parser.parse_args()
    if options.install:
        for peer in MEMORY_PACKAGES:
            install(peer, options.venvs)
        return 0
    num_bytes, num_rounds = options.mib * MIB, options.rounds
    print(f"{options.mib} MiB on one host: GB/s, best of {options.passes * num_rounds}; load {os.getloadavg()[0]:.1f}")
    rows: dict[str, list[dict[str, float]]] = {}
    problems: dict[str, str] = {}
    peers = [] if "none" in options.peers else options.peers
    with monarch_hpc.hosts() as hosts, hosts.spawn_procs(per_host={"p": 1}) as procs:
        owner = procs.spawn("owner", Owner)
        for _ in range(options.passes):
            ours, path = measure_ours(owner, num_bytes, num_rounds)
            copy_s = measure_copy(num_bytes, num_rounds)
            rows.setdefault(f"ours, {path}", []).append(ours)
            rows.setdefault(_SHARED, []).append(measure_ours(owner, num_bytes, num_rounds, shared=True)[0])
            rows.setdefault("memcpy", []).append({"get": copy_s, "put": copy_s})
            for peer in peers:
                try:
                    rows.setdefault(peer, []).append(measure_peer(peer, num_bytes, num_rounds, options.venvs))
                except (Gone, NotInstalled) as error:
                    problems[peer] = str(error)
        read_s, call_s = measure_latency(owner)
        first_s, again_s = measure_pieces(owner, num_rounds)
        owner.register.call_one(1, 1).get(_PATIENCE_S)  # imports what trees need
        one_s, many_s, same_s, pin_s = measure_registrations(owner, options.passes)
    passes = next(iter(rows.values()))
    ours = {what: min(one[what] for one in passes) for what in passes[0]}
    ratios: dict[tuple[str, str], float] = {}
    for name, found in rows.items():
        cells = []
        for what in ours if found else ():
            ratio = statistics.median(one[what] / own[what] for one, own in zip(found, passes, strict=False))
            ratios[name, what] = ratio
            cells.append(f"{what} {num_bytes / min(one[what] for one in found) / 1e9:6.2f} ({ratio:.2f}x)")
        print(f"{name:16} {'   '.join(cells)}")
    for peer, problem in problems.items():
        print(f"{peer:16} {problem}")
    missed = False
    for (own_name, peer), goal in PAIR_GOALS.items():
        if rows.get(own_name) and rows.get(peer):
            both = zip(rows[own_name], rows[peer], strict=False)
            ratio = statistics.median(theirs["get"] / own["get"] for own, theirs in both)
            missed |= ratio < goal
            print(f"{own_name} to {peer}: {ratio:.2f}x (goal {goal})")
    missed |= read_s > call_s or any(
        ratios[peer, "get"] < goal for peer, goal in GOALS.items() if (peer, "get") in ratios
    )
    pieces_bytes = _PIECES * _PIECE_BYTES
    whole_s = ours["get"] * pieces_bytes / num_bytes
    print(f"4 KiB read: {1e6 * read_s:.0f} us; a call: {1e6 * call_s:.0f} us ({read_s / call_s:.2f}x)")
    print(
        f"{_PIECES} pieces of 4 KiB: first {1e3 * first_s:.1f} ms, then {1e3 * again_s:.1f} ms "
        f"({pieces_bytes / again_s / 1e9:.2f} GB/s, {again_s / whole_s:.2f}x the time of one piece)"
    )
    for fabric in _OWN:
        if rows.get(fabric):
            frames_s = min(one["pieces"] for one in rows[fabric])
            missed |= frames_s > _PIECES_S
            print(f"the same by frames over {fabric}: {1e3 * frames_s:.1f} ms")
    if rows.get("nixl"):
        nixl_s = min(one["pieces"] for one in rows["nixl"])
        missed |= nixl_s < again_s
        print(f"the same as a prepared list of NIXL: {1e3 * nixl_s:.1f} ms ({nixl_s / again_s:.2f}x)")
    print(
        f"a state of {_TENSORS} arrays of a GiB: {1e3 * many_s:.1f} ms of CPU time, again {1e3 * same_s:.1f}; "
        f"one array: {1e3 * one_s:.2f}"
    )
    if pin_s is not None:
        print(
            f"with the {1e3 * pin_s:.0f} ms in which the kernel pins it: {(pin_s + many_s) / (pin_s + one_s):.2f}x one "
            f"array (goal 1.3), again {100 * same_s / (pin_s + many_s):.1f} % (goal 2)"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
