"""Fixtures shared by several modules of system tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc.actor
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config import Config
from monarch_hpc.config.load import load
from monarch_hpc.testing import wait_until
from monarch_hpc.transport.engine.engine import Engine
from tests.system.support.agent_client import ENTRY, cookie_holders, standin_path
from tests.system.support.controlling import SharedHosts


@pytest.fixture(scope="module", autouse=True)
def patience() -> Iterator[None]:
    """No host is dead by its silence, and the cause of a death is waited for, however long a process stands still.

    So it is for all programs that tests start; a test of silence sets times of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONARCH_HPC_LIVENESS__DEAD_S", "600")
        patch.setenv("MONARCH_HPC_PROCS__CAUSE_S", "20")
        yield


@pytest.fixture(scope="session")
def shared_hosts() -> Iterator[SharedHosts]:
    """Hosts for the files that need no others."""
    with contextlib.ExitStack() as resources:
        yield SharedHosts(resources)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A running engine."""
    engine = Engine()
    engine.start()
    yield engine
    engine.close()


@pytest.fixture
def dead_s() -> float:
    """Seconds without heartbeats after which a peer is dead: none is; a test module may replace it."""
    return 600.0


@pytest.fixture
def config(dead_s: float) -> Config:
    """Short grace periods, heartbeats that are missed within half a second, and no return of lost hosts.

    A test module may replace it.
    """
    liveness = {"liveness.heartbeat_s": 0.1, "liveness.suspect_s": 0.4, "liveness.dead_s": dead_s}
    return load({"procs.stop_s": 1.0, "agent.grace_s": 1.0, "heal.tries": 0, **liveness}).config


@pytest.fixture
def directory(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two hosts with `config`; checks that nothing is left of them."""
    monkeypatch.setenv("PYTHONPATH", standin_path(tmp_path))
    with open_local(2, config, tmp_path / "allocation", entry=ENTRY) as where:
        yield where
    assert not where.exists()
    # One that was killed is there until the kernel has run it once more.
    wait_until("the end of its processes", lambda: cookie_holders(where), accept=lambda left: not left)


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[MeshFailure]:
    """Unhandled failures, collected here instead of ending this process."""
    seen: list[MeshFailure] = []
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", seen.append)
    return seen
