"""Fixtures shared by several modules of system tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import monarch_hpc.actor
from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config import Config
from tests.system.support.agent_client import ENTRY, cookie_holders, standin_path


@pytest.fixture
def directory(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two hosts with the test module's `config`; checks that nothing is left of them."""
    monkeypatch.setenv("PYTHONPATH", standin_path(tmp_path))
    with open_local(2, config, tmp_path / "allocation", entry=ENTRY) as where:
        yield where
    assert not where.exists()
    assert cookie_holders(where) == []


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[MeshFailure]:
    """Unhandled failures, collected here instead of ending this process."""
    seen: list[MeshFailure] = []
    monkeypatch.setattr(monarch_hpc.actor, "unhandled_fault_hook", seen.append)
    return seen
