"""Fixtures of the tests of actors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.proc import ProcMesh
from tests.system.support.controlling import settle


@pytest.fixture(scope="module")
def proc(hosts: HostMesh) -> ProcMesh:
    """One proc for all tests of a module, on its hosts."""
    proc = hosts.slice(hosts=0).spawn_procs()
    settle(proc)
    return proc


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)
