from __future__ import annotations

import itertools

import pytest

from monarch_hpc.supervision import Lease, Life
from monarch_hpc.supervision.lease import TRANSITIONS

LEASE = Lease(suspect_s=5.0, dead_s=15.0)


@pytest.mark.parametrize(
    ("silent_s", "expected"),
    [
        (0.0, Life.ALIVE),
        (4.9, Life.ALIVE),
        (5.0, Life.SUSPECT),
        (14.9, Life.SUSPECT),
        (15.0, Life.DEAD),
        (1e9, Life.DEAD),
    ],
)
@pytest.mark.parametrize("life", [Life.ALIVE, Life.SUSPECT])
def test_silence_decides(life: Life, silent_s: float, expected: Life) -> None:
    assert LEASE.judge(life, heard_s=100.0, now_s=100.0 + silent_s) is expected


def test_nobody_returns_from_the_dead() -> None:
    assert LEASE.judge(Life.DEAD, heard_s=100.0, now_s=100.0) is Life.DEAD


def test_every_transition_is_listed() -> None:
    seen = {
        (life, LEASE.judge(life, 0.0, silent_s)) for life, silent_s in itertools.product(Life, (-1.0, 0.0, 5.0, 15.0))
    }
    assert seen == {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
