"""Two procs that have torch, shared by all tests of a file: loading it takes longer than the tests.

Not by all files: a worker of the suite runs others in between, which have allocations of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.config.load import load
from tests.system.support.controlling import controlled, settle


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    """One host of an embedded allocation, with this process as its controller."""
    pytest.importorskip("torch")
    settings = {"procs.stop_s": 5.0, "tensor.collective_s": 120.0, "tensor.keep_errors": 50}
    with controlled(load(settings).config, 1) as hosts:
        yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs along ``dp``."""
    procs = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=["torch"])
    settle(procs)
    with procs.activate():
        pass  # opens the workers, whose connections stay
    return procs
