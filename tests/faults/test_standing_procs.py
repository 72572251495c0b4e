"""A proc that stands still for too long, on a host where nothing else dies of its silence as soon."""

from __future__ import annotations

import pytest

from monarch_hpc import DeathKind, ProcDied
from monarch_hpc.config.load import load
from monarch_hpc.testing.faults import Faulty, stopped
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 120.0
_DEAD_S = 25.0
"""Longer than its agent, or this process, stands still on a busy machine."""


@pytest.mark.slow  # it stands still for that long
def test_a_proc_that_stands_still_for_too_long_is_killed_and_said_to_be_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("monarch_hpc.actor.unhandled_fault_hook", lambda _failure: None)
    with controlled(load({"liveness.dead_s": _DEAD_S}).config, 1) as hosts, hosts.spawn_procs() as procs:
        settle(procs)
        faulty = procs.spawn("faulty", Faulty)
        pid = faulty.pid.call_one().get(_PATIENCE_S)
        with stopped(pid), pytest.raises(ProcDied) as caught:
            faulty.pid.call_one().get(_PATIENCE_S)
    assert caught.value.kind is DeathKind.SIGNAL and "stopped (SIGSTOP) for" in caught.value.cause
