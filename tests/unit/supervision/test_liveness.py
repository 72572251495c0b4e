from __future__ import annotations

import itertools

import pytest

from monarch_hpc.supervision import Lease, Liveness
from monarch_hpc.supervision.liveness import TRANSITIONS

LEASE = Lease(suspect_s=5.0, dead_s=15.0)


@pytest.mark.parametrize(
    ("silent_s", "expected"),
    [
        (0.0, Liveness.ALIVE),
        (4.9, Liveness.ALIVE),
        (5.0, Liveness.SUSPECT),
        (14.9, Liveness.SUSPECT),
        (15.0, Liveness.DEAD),
        (1e9, Liveness.DEAD),
    ],
)
@pytest.mark.parametrize("life", [Liveness.ALIVE, Liveness.SUSPECT])
def test_silence_decides(life: Liveness, silent_s: float, expected: Liveness) -> None:
    assert LEASE.next_state(life, last_seen_s=100.0, now_s=100.0 + silent_s) is expected


def test_nobody_returns_from_the_dead() -> None:
    assert LEASE.next_state(Liveness.DEAD, last_seen_s=100.0, now_s=100.0) is Liveness.DEAD


def test_every_transition_is_listed() -> None:
    seen = {
        (life, LEASE.next_state(life, 0.0, silent_s))
        for life, silent_s in itertools.product(Liveness, (-1.0, 0.0, 5.0, 15.0))
    }
    assert seen == {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
