"""Requests for hosts in place of lost ones: a few at a time, a few an hour, and none after a failure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch_hpc.supervision.replacement import Replacement, ReplacementLimit

LIMIT = ReplacementLimit(max_pending=2, per_hour=6)
NOW_S = 10_000.0


@pytest.mark.parametrize(
    ("earlier", "silence", "refusal"),
    [
        ([], "", ""),
        ([Replacement(NOW_S - 5, pending=True)], "", ""),
        ([Replacement(NOW_S - age_s, pending=True) for age_s in (5, 9000)], "", "2 requests are pending"),
        ([Replacement(NOW_S - 60 * number) for number in range(5)], "", ""),
        ([Replacement(NOW_S - 60 * number) for number in range(6)], "", "6 requests were made within an hour"),
        ([Replacement(NOW_S - 3599 - number % 2) for number in range(6)], "", ""),
        ([Replacement(NOW_S - 600, problem="bad node")], "", "none is made for 50 min: bad node"),
        ([Replacement(NOW_S - 3600, problem="bad node")], "", ""),
        ([Replacement(NOW_S - 60), Replacement(NOW_S - 600, problem="bad node")], "", ""),
        ([Replacement(NOW_S - 60, pending=True), Replacement(NOW_S - 600, problem="bad node")], "", "bad node"),
        ([], "no answer in 10 s", "Slurm does not answer: no answer in 10 s"),
    ],
    ids=[
        *("first", "one pends", "two pend", "five", "six", "three old", "failed", "failed long ago"),
        *("came since", "pends since", "silent"),
    ],
)
def test_what_is_refused(earlier: list[Replacement], silence: str, refusal: str) -> None:
    found = LIMIT.refusal(earlier, NOW_S, silence)
    assert refusal in found and bool(found) == bool(refusal), found


@given(
    st.integers(0, 3),
    st.integers(0, 5),
    st.lists(st.tuples(st.floats(0.1, 2000), st.sampled_from(["came", "failed", "pending"])), max_size=40),
)
def test_no_hour_has_more_requests_than_are_allowed(
    max_pending: int, per_hour: int, trials: list[tuple[float, str]]
) -> None:
    limit, now_s, begun = ReplacementLimit(max_pending, per_hour), 0.0, list[Replacement]()
    for pause_s, outcome in trials:
        now_s += pause_s
        if not limit.refusal(begun, now_s):
            begun.append(Replacement(now_s, outcome == "pending", "broken" if outcome == "failed" else ""))
    for one in begun:
        assert sum(one.begun_s <= other.begun_s < one.begun_s + 3600 for other in begun) <= per_hour
    assert sum(one.pending for one in begun) <= max_pending
    failed = [one.begun_s for one in begun if one.problem]
    assert all(not at_s < other.begun_s < at_s + 3600 for at_s in failed for other in begun)
