"""Measures how casts scale with the allocation: one process runs many agents' routers and passes on their frames.

    python benchmarks/scale.py                    # 1 to 10 000 hosts
    python benchmarks/scale.py --hosts 4096 --per-host 8

The routing is the real one (`agent.casts.router`, `wire.casts`), without sockets, sealing and actors. The work is the
CPU time of this process for all hosts, one after the other; it is not a latency. The second line of each size is a call
whose answers of four bytes are added up on the hosts, as by `Accumulator(..., merge=)`.
"""

from __future__ import annotations

import argparse
import math
import struct
import time
from collections.abc import Iterable

from monarch_hpc.testing.simulated_allocation import SimulatedAllocation

_NUM_CASTS = 3
_SIZES = (1, 16, 17, 100, 1000, 4096, 10_000)


def measure(num_hosts: int, per_host: int, fanout: int) -> None:
    """Measure one size and print two lines."""
    simulated = SimulatedAllocation(num_hosts, per_host, fanout, combine=_add)
    simulated.cast()
    simulated.run()  # the first cast chooses the routes
    for reduced in (False, True):
        _measure(simulated, num_hosts, fanout, reduced=reduced)


def _add(answers: Iterable[bytes]) -> bytes:
    return struct.pack(">I", sum(struct.unpack(">I", answer)[0] for answer in answers))


def _measure(simulated: SimulatedAllocation, num_hosts: int, fanout: int, *, reduced: bool) -> None:
    simulated.frames.clear()
    simulated.sender.frames.clear()
    simulated.sender.received_bytes = 0
    begun_s = time.perf_counter()
    for _ in range(_NUM_CASTS):
        number = simulated.cast(reduced=reduced)
        simulated.run()
    took_s = (time.perf_counter() - begun_s) / _NUM_CASTS
    num_procs = len(simulated.procs)
    answered = len(simulated.sender.answers[number])
    if answered != num_procs:
        raise SystemExit(f"{answered} of {num_procs} procs have answered")
    sent, received = (simulated.sender.frames[what] / _NUM_CASTS for what in ("sent", "received"))
    bound = math.ceil(math.log(max(num_hosts, 2), fanout)) if num_hosts > 1 else 0
    busiest = max(simulated.frames.values()) / _NUM_CASTS
    if reduced and simulated.sender.parts[number] != {0: struct.pack(">I", num_procs * (num_procs - 1) // 2)}:
        raise SystemExit(f"{num_procs} answers were not added up")
    ends = f"{sent:10.1f} {received:10.1f} {simulated.sender.received_bytes / _NUM_CASTS:12.0f}"
    work = f"{took_s * 1e3:9.1f} ms {took_s / num_procs * 1e6:8.1f} us"
    print(
        f"{num_hosts:8} {num_procs:8} {ends} {simulated.hops:6} {bound:6} {busiest:10.1f} {work}{' reduced' * reduced}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, nargs="*", default=_SIZES)
    parser.add_argument("--per-host", type=int, default=4)
    parser.add_argument("--fanout", type=int, default=16)
    arguments = parser.parse_args()
    print("                    controller's frames       bytes          log of  frames of       work of")
    print("   hosts    procs       sent   received    received   hops  hosts  busiest host  all hosts  per proc")
    for num_hosts in arguments.hosts:
        measure(num_hosts, arguments.per_host, arguments.fanout)


if __name__ == "__main__":
    main()
