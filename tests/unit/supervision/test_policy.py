"""Restart policies: pure decisions on given times."""

from __future__ import annotations

from typing import Any

import pytest

from monarch_hpc.supervision.policy import MAX_LINES, Again, Failed, Lives, Restart


def ends(policy: Restart, times_s: list[float], *, succeeded: bool = False) -> list[Again | Failed]:
    """What follows ends at these times."""
    lives = Lives(policy)
    return [lives.on_end(now_s, succeeded=succeeded) for now_s in times_s]


@pytest.mark.parametrize(
    ("when", "succeeded", "again"),
    [
        ("never", False, False),
        ("never", True, False),
        ("on-failure", False, True),
        ("on-failure", True, False),
        ("always", False, True),
        ("always", True, True),
    ],
)
def test_a_policy_tells_which_ends_are_followed_by_a_restart(when: Any, succeeded: bool, again: bool) -> None:
    (decision,) = ends(Restart(when), [5.0], succeeded=succeeded)
    assert decision == (Again(0.1, 1) if again else Failed())


def test_delays_double_up_to_their_limit() -> None:
    policy = Restart("always", max_restarts=6, window_s=1000, backoff_s=(0.5, 3))
    found = ends(policy, [0, 1, 2, 3, 4, 5])
    assert found == [Again(0.5, 1), Again(1, 2), Again(2, 3), Again(3, 4), Again(3, 5), Again(3, 6)]
    assert ends(Restart(backoff_s=(0, 0)), [0, 0, 0]) == [Again(0, 1), Again(0, 2), Again(0, 3)]
    many = ends(Restart(max_restarts=5000, backoff_s=(1e-9, 2)), [float(step) / 100 for step in range(5000)])
    assert many[-1] == Again(2, 5000)


def test_a_crash_loop_fails_with_the_last_lines_of_its_lives() -> None:
    lives = Lives(Restart(max_restarts=2, window_s=60, backoff_s=(0.1, 10)))
    for life in range(2):
        assert isinstance(
            lives.on_end(life, succeeded=False, last_lines=[f"{life}.{line}" for line in range(30)]), Again
        )
    failed = lives.on_end(3.0, succeeded=False, last_lines=["last"])
    assert isinstance(failed, Failed)
    assert failed.reason == "it was started again 2 times within 60 s, as its restart policy allows"
    wrote = [f"{life}.{line}" for life in range(2) for line in range(30)] + ["last"]
    assert list(failed.last_lines) == wrote[-MAX_LINES:]


def test_restarts_leave_the_window() -> None:
    lives = Lives(Restart(max_restarts=1, window_s=60, backoff_s=(0, 0)))
    assert lives.on_end(0.0, succeeded=False) == Again(0, 1)
    failed = lives.on_end(59.9, succeeded=False)
    assert failed == Failed("it was started again once within 60 s, as its restart policy allows")
    assert lives.on_end(60.0, succeeded=False) == Again(0, 1)


def test_no_restart_may_be_allowed() -> None:
    assert ends(Restart(max_restarts=0), [1.0]) == [Failed("its restart policy allows no restart")]


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"when": "often"}, ValueError, "'often'.*'never', 'on-failure', 'always'"),
        ({"max_restarts": -1}, ValueError, "max_restarts"),
        ({"max_restarts": 1.5}, TypeError, "max_restarts"),
        ({"window_s": 0}, ValueError, "window_s"),
        ({"window_s": float("nan")}, ValueError, "window_s"),
        ({"backoff_s": 1}, TypeError, "the first delay and the longest"),
        ({"backoff_s": "12"}, TypeError, "the first delay and the longest"),
        ({"backoff_s": (1, 0.5)}, ValueError, "below the first"),
        ({"backoff_s": (-1, 5)}, ValueError, "backoff_s"),
    ],
)
def test_invalid_policies_are_refused_by_name(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Restart(**arguments)
