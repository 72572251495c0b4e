"""Two procs that have torch, shared by all tests of a file: loading it takes longer than the tests.

Not by all files: a worker of the suite runs others in between, which have allocations of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.config.load import load
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import controlled, settle


@pytest.fixture(scope="module")
def hosts() -> Iterator[HostMesh]:
    """One host of an embedded allocation, with this process as its controller."""
    pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        # Not of the allocation: the program opens tensors with a configuration of its own.
        patch.setenv("MONARCH_HPC_TENSOR__COLLECTIVE_S", "120")
        patch.setenv("MONARCH_HPC_TENSOR__KEEP_ERRORS", "50")
        with controlled(load({"procs.stop_s": 5.0}).config, 1) as hosts:
            yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs along ``dp``."""
    procs = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
    settle(procs)
    with procs.activate():
        pass  # opens the workers, whose connections stay
    return procs
