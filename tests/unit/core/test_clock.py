from __future__ import annotations

import importlib.util
import math
import sys
import time

import pytest

from monarch_hpc.core import clock
from monarch_hpc.core.clock import Deadline, monotonic, monotonic_ns, real_monotonic


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


def test_the_clock_is_that_of_the_kernel() -> None:
    for seconds in (monotonic, real_monotonic(), lambda: monotonic_ns() / 1e9):
        before_s = time.monotonic()
        assert before_s <= seconds() + 1e-6 <= time.monotonic() + 1e-3


def test_it_is_not_the_one_that_a_program_puts_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    before_s = monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    assert monotonic() >= before_s and monotonic_ns() >= before_s * 1e9
    # Imported while time stands still, as `@freeze_time` does around a program's first use of ours.
    found = importlib.util.spec_from_file_location("clock_again", clock.__file__)
    assert found is not None and found.loader is not None
    loaded = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "clock_again", loaded)
    found.loader.exec_module(loaded)
    assert loaded.monotonic() >= before_s and loaded.real_monotonic()() >= before_s
    assert loaded.monotonic_ns() >= before_s * 1e9
    # freezegun compares the values of a module's globals with the functions that it replaces.
    assert not any(value in (time.monotonic, time.monotonic_ns) for value in vars(loaded).values())
