"""Procs that a signal stops, and that go on before they count as dead."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from monarch_hpc import ActorMesh
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from tests.system.procs.test_busy_procs import Busy, listen, stop
from tests.system.support.controlling import controlled, settle

_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def busy() -> Iterator[ActorMesh[Busy]]:
    """An actor on the second host. It is suspect soon, and not dead however long this test takes."""
    loaded = load().config
    config = replace(loaded, liveness=replace(loaded.liveness, heartbeat_s=0.1, suspect_s=0.4, dead_s=600.0))
    with controlled(config) as hosts, hosts.slice(hosts=1).spawn_procs() as procs:
        settle(procs)
        yield procs.spawn("busy", Busy)


def test_a_proc_that_is_stopped_for_a_moment_answers_later(
    busy: ActorMesh[Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = listen(monkeypatch)
    pid = busy.pid.call_one().get(_PATIENCE_S)
    stop(pid)
    futures = [busy.double.call_one(np.full(4, number)) for number in range(100)]
    words = "proc 0 on local1 is stopped by a signal (SIGSTOP): let it go on (SIGCONT), or it is killed 600 s after"
    wait_until("the news", stderr.getvalue, accept=lambda text: words in text)
    assert not any(future.done() for future in futures)
    os.kill(pid, signal.SIGCONT)
    assert [int(future.get(_PATIENCE_S)[0]) for future in futures] == list(range(0, 200, 2))
    wait_until("the news", stderr.getvalue, accept=lambda text: "proc 0 on local1 goes on after" in text)
    assert stderr.getvalue().count("\n") == 2
