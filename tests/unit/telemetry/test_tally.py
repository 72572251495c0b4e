"""Counts of many processes are summed, and their quantiles are within the promised error."""

from __future__ import annotations

import random

import pytest

from monarch_hpc.telemetry.histogram import added, bucket_of, quantile
from monarch_hpc.telemetry.layout import BUCKET_BITS, NUM_BUCKETS
from monarch_hpc.telemetry.views.tally import tally
from monarch_hpc.wire.tables.calls import EndpointCount, ProcCalls, Scene


def counted(times_ns: list[int]) -> list[int]:
    counts = [0] * NUM_BUCKETS
    for ns in times_ns:
        counts[bucket_of(ns)] += 1
    return counts


def proc(run: str, rank: int, *endpoints: EndpointCount) -> ProcCalls:
    scene = Scene("", f"{run}{rank}", [], [], [], [], 0, list(endpoints))
    return ProcCalls(run, 1, rank, "host", 1, "ready", "", scene)


def test_the_edges_of_buckets() -> None:
    first = 1 << BUCKET_BITS
    assert [bucket_of(ns) for ns in (0, first - 1, first, 2 * first - 1, 2 * first)] == [0, 0, 1, 1, 2]
    last = 1 << (BUCKET_BITS + NUM_BUCKETS - 2)
    assert [bucket_of(ns) for ns in (last - 1, last, 2**63)] == [NUM_BUCKETS - 2, NUM_BUCKETS - 1, NUM_BUCKETS - 1]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.99, 1.0])
@pytest.mark.parametrize("seed", range(20))
def test_a_quantile_lies_in_its_bucket(seed: int, share: float) -> None:
    noise = random.Random(seed)
    times_ns = sorted(int(noise.lognormvariate(12, 3)) for _ in range(noise.randrange(1, 500)))
    told_s = quantile(counted(times_ns), share, times_ns[-1] * 1e-9)
    true_ns = times_ns[max(-(-int(share * 1e6) * len(times_ns) // 10**6) - 1, 0)]
    assert told_s <= times_ns[-1] * 1e-9
    bucket = bucket_of(true_ns)
    least_ns = 0 if bucket == 0 else 1 << (BUCKET_BITS + bucket - 1)
    assert least_ns * 1e-9 <= told_s <= (1 << (BUCKET_BITS + bucket)) * 1e-9


def test_quantiles_of_nothing_and_of_one() -> None:
    assert quantile([], 0.5, 0.0) == quantile([0, 0], 0.5, 0.0) == 0.0
    assert quantile(counted([10**12]), 1.0, 1e3) == pytest.approx(1e3)  # the last bucket ends at the longest
    assert 275 < quantile(counted([10**12]), 0.5, 1e3) < 1e3


def test_counts_of_processes_are_added_up() -> None:
    fast = EndpointCount("a", "step", 3, 1, 3e-6, 1.5e-6, counted([1000] * 3), 6e-3, 3e-3, counted([2 * 10**6] * 3))
    slow = EndpointCount("a", "step", 1, 0, 2.0, 2.0, counted([2 * 10**9]), 0.0, 0.0, [1])
    other = EndpointCount("b", "step", 1, 0, 9.0, 9.0, counted([9 * 10**9]), 0.0, 0.0, [1])
    found = tally([proc("r", 0, fast), proc("r", 1, slow, other), proc("q", 0, fast)])
    assert [(one.run, one.name, one.num_procs, one.num_calls, one.num_failed) for one in found] == [
        ("q", "a", 1, 3, 1),
        ("r", "b", 1, 1, 0),
        ("r", "a", 2, 4, 1),
    ]
    step = found[2]
    assert step.ran.total_s == pytest.approx(2.000003)
    assert 0.5e-6 < step.ran.p50_s < 1.5e-6
    assert 1.0 < step.ran.p99_s <= step.ran.longest_s == 2.0
    assert 1e-3 < step.queued.p50_s <= step.queued.p99_s <= step.queued.longest_s == 3e-3


def test_histograms_of_different_lengths() -> None:
    assert added([1, 2], [10, 20, 30]) == added([10, 20, 30], [1, 2]) == [11, 22, 30]
