"""Rate limits: a flooding reader gets only what the others leave, and output to the program is limited."""

from __future__ import annotations

from monarch_hpc.agent.output.rate_limit import FairShare, TokenBucket, cost_bytes

KIB = 1 << 10


def read_for(fair_share: FairShare, readers: list[str], seconds: float) -> dict[str, int]:
    """Let greedy *readers* read, each as soon as it may; return how much each has read."""
    read = dict.fromkeys(readers, 0)
    wakes_s = dict.fromkeys(readers, 0.0)
    now_s = 0.0
    while now_s < seconds:
        for reader in readers:
            if wakes_s[reader] <= now_s:
                read[reader] += 64 * KIB
                wakes_s[reader] = now_s + fair_share.take(reader, 64 * KIB, now_s)
        now_s += 0.0005
    return read


def test_one_alone_gets_all_and_not_more() -> None:
    read = read_for(FairShare(32 << 20, 64 * KIB), ["a"], 2.0)
    assert 0.9 * (64 << 20) <= read["a"] <= 1.1 * (64 << 20)


def test_those_who_pour_share_alike() -> None:
    readers = [f"r{number}" for number in range(8)]
    read = read_for(FairShare(32 << 20, 64 * KIB), readers, 2.0)
    assert max(read.values()) <= 1.2 * min(read.values())
    assert 0.8 * (64 << 20) <= sum(read.values()) <= 1.2 * (64 << 20)


def test_who_reads_little_never_waits() -> None:
    fair_share = FairShare(32 << 20, 64 * KIB)
    for step in range(4000):
        now_s = step / 1000
        fair_share.take("flood", 64 * KIB, now_s)
        if step % 100 == 0:
            assert fair_share.take("quiet", 200, now_s) == 0.0


def test_who_used_it_up_waits_for_the_next_window_at_most() -> None:
    fair_share = FairShare(1 << 20, 64 * KIB)
    assert 0.0 < fair_share.take("a", 64 * KIB, 100.01) <= 0.05
    assert fair_share.take("a", 100, 100.06) == 0.0
    assert FairShare(0, 64 * KIB).take("a", 1 << 30, 0.0) == 0.0


def test_an_allowance_lets_a_burst_pass_and_then_so_much_a_second() -> None:
    bucket = TokenBucket(1000, 0.0)
    assert [bucket.take(1000, 0.0) for _ in range(5)] == [True] * 4 + [False]
    # Once exhausted, it waits until a second's worth has accumulated.
    assert not bucket.take(10, 0.5)
    assert bucket.take(900, 1.0) and not bucket.take(200, 1.0) and not bucket.take(1, 1.0)
    # A piece larger than the bucket passes after a long enough pause.
    assert not bucket.take(5000, 3.0) and bucket.take(5000, 1000.0) and not bucket.take(1, 1000.5)
    assert bucket.take(500, 1002.0)
    unlimited = TokenBucket(0, 0.0)
    assert all(unlimited.take(1 << 40, 0.0) for _ in range(3))


def test_empty_lines_are_not_free() -> None:
    bucket = TokenBucket(1 << 20, 0.0)
    passed = 0
    while bucket.take(cost_bytes(1000, 1000), 0.0):
        passed += 1000
    assert passed < 100_000
