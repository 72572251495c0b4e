"""Measures the cost of a call's telemetry records, in nanoseconds: `python benchmarks/recorder.py`.

Medians of several rounds, without the loop. Both sides of a call run in one process, one after the other.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from monarch_hpc.telemetry.recorder import Recorder

_NUM_CALLS = 100_000
_NUM_ROUNDS = 9


def measure(step: Callable[[int], object]) -> float:
    """Return the nanoseconds for one *step*, including the Python call."""
    rounds = []
    for _ in range(_NUM_ROUNDS):
        started = time.perf_counter_ns()
        for number in range(1, _NUM_CALLS):
            step(number)
        called = time.perf_counter_ns()
        for number in range(1, _NUM_CALLS):  # noqa: B007 the loop alone
            pass
        rounds.append((2 * called - started - time.perf_counter_ns()) / _NUM_CALLS)
    return statistics.median(rounds)


def rows(written: Recorder) -> dict[str, float]:
    """Return the cost of each part."""
    name = written.names.endpoint("actor", "echo")
    peer = written.names.proc(1, "host")
    mark = written.actor(1 << 63, "actor", 0).mark
    handling = written.handling(mark)
    sent, answered, wait, waited = written.sent, written.answered, written.wait, written.waited
    clock = time.monotonic_ns

    def call(number: int) -> None:
        sent(number, mark, name, peer, 100, 1 << 63)
        answered(number)

    def handle(number: int) -> None:
        handling.begin(name, peer, number, 100, clock())
        handling.end(100)

    rings, record, metric = written.rings, written.metric, written.names.metric("loss")
    empty = measure(lambda number: None)
    return {
        "caller: sent, answered": measure(call) - empty,
        "called side: came, begin, end": measure(handle) - empty,
        "a thread that waits": measure(lambda number: waited(wait(number, number))) - empty,
        "a metric": measure(lambda number: record(mark, metric, 0, number, 0.5)) - empty,
        "a span": measure(lambda _: rings.span(mark, metric, 0, 0).end(failed=False)) - empty,
    }


def main() -> None:
    """Print a table."""
    compiled, plain = rows(Recorder()), rows(Recorder(plain=True))
    print(f"{'ns':32}{'compiled':>9}{'plain':>7}")
    for what, taken in compiled.items():
        print(f"{what:32}{taken:9.0f}{plain[what]:7.0f}")


if __name__ == "__main__":
    main()
