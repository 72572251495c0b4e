"""Warnings of a program that has used half of what this machine allows a process."""

from __future__ import annotations

import os
import resource

import pytest

from monarch_hpc.cli.runs import limits
from monarch_hpc.cli.runs.limits import LimitWatch


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The limits of this process: none at first."""
    allowed = dict.fromkeys([resource.RLIMIT_CPU, resource.RLIMIT_AS], resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (allowed[which], resource.RLIM_INFINITY))
    return allowed


def test_without_limits_there_is_nothing_to_watch(allowed: dict[int, int]) -> None:
    assert limits.cpu_limit_s() is None
    assert not LimitWatch(os.getpid(), pytest.fail).needed


def test_half_of_a_limit_is_warned_of_once(allowed: dict[int, int]) -> None:
    used_s = sum(os.times()[:2])
    allowed[resource.RLIMIT_CPU] = int(used_s * 4) + 100
    allowed[resource.RLIMIT_AS] = 1 << 50
    said: list[str] = []
    watch = LimitWatch(os.getpid(), said.append)
    assert watch.needed
    watch.check()
    assert said == []
    allowed[resource.RLIMIT_CPU] = 0
    allowed[resource.RLIMIT_AS] = 1 << 20
    watch = LimitWatch(os.getpid(), said.append)
    for _ in range(2):
        watch.check()
    assert len(said) == 2
    assert "of CPU time that a process may use on this machine" in said[0]
    assert "of the 1 MiB of address space" in said[1] and "'monarch-hpc run --on host0'" in said[1]
    assert not watch.needed
