from __future__ import annotations

import math

from monarch_hpc.core.clock import Deadline


def test_a_deadline_counts_down_and_passes_once_and_for_all() -> None:
    now_s = 100.0
    deadline = Deadline(5.0, lambda: now_s)
    assert (deadline.left_s(), deadline.elapsed_s(), deadline.passed()) == (5.0, 0.0, False)
    now_s = 104.0
    assert (deadline.left_s(), deadline.elapsed_s(), deadline.passed()) == (1.0, 4.0, False)
    now_s = 105.0
    assert (deadline.left_s(), deadline.passed()) == (0.0, True)
    now_s = 200.0
    assert (deadline.left_s(), deadline.elapsed_s(), deadline.passed()) == (0.0, 100.0, True)


def test_a_wait_without_end_never_passes() -> None:
    now_s = 0.0
    deadline = Deadline(math.inf, lambda: now_s)
    now_s = 1e12
    assert (deadline.left_s(), deadline.passed()) == (math.inf, False)
