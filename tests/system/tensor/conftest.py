"""Two procs or four that have torch, shared by all tests of a file, on a host that all files share.

Loading torch takes longer than the tests, and the host forks procs from a process that has loaded it. What a worker of
the suite runs in between has allocations and controllers of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.attach.embedded import open_local
from monarch_hpc.config.load import load
from monarch_hpc.core.ids import new_run_id
from monarch_hpc.distributed import Mesh
from monarch_hpc.tensor.sharded.procs import PRELOADED
from monarch_hpc.tensor.testing import local_mesh
from tests.system.support.controlling import controlling, settle

_STOP_S = 120.0


@pytest.fixture(scope="session")
def allocation() -> Iterator[Path]:
    """The directory of an embedded allocation of one host."""
    pytest.importorskip("torch")
    # As `patience`, which is for one file.
    config = load({"procs.stop_s": 5.0, "liveness.dead_s": 600.0, "procs.cause_s": 20.0}).config
    with open_local(1, config) as directory:
        yield directory


@pytest.fixture(scope="module")
def hosts(allocation: Path) -> Iterator[HostMesh]:
    """The host, with this process as the controller of a run for each file."""
    with pytest.MonkeyPatch.context() as patch:
        # Not of the allocation: the program opens tensors with a configuration of its own.
        patch.setenv("MONARCH_HPC_TENSOR__COLLECTIVE_S", "120")
        patch.setenv("MONARCH_HPC_TENSOR__KEEP_ERRORS", "50")
        with controlling(allocation, new_run_id()) as hosts:
            yield hosts


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs along ``dp``."""
    procs = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
    settle(procs)
    with procs.activate():
        pass  # opens the workers, whose connections stay
    return procs


@pytest.fixture(scope="module")
def grid(hosts: HostMesh) -> Iterator[ProcMesh]:
    """Four procs, 2 x 2, shared by the tests of a file."""
    with _four(hosts) as procs:
        yield procs


@pytest.fixture(scope="module")
def mesh(grid: ProcMesh) -> Mesh:
    """They as a mesh for sharded tensors."""
    return Mesh(procs=grid)


@pytest.fixture(scope="module")
def local() -> Iterator[Mesh]:
    """Two by two ranks in this process, as a mesh for sharded tensors."""
    with local_mesh(dp=2, tp=2) as procs:
        mesh = Mesh(procs=procs)
        mesh.ones(1)
        yield mesh


@pytest.fixture
def grid_of_its_own(hosts: HostMesh, procs: ProcMesh) -> Iterator[ProcMesh]:
    """Likewise, for a test that kills some."""
    with _four(hosts) as found:
        yield found


@contextlib.contextmanager
def _four(hosts: HostMesh) -> Iterator[ProcMesh]:
    procs = hosts.slice(hosts=0).spawn_procs({"dp": 2, "tp": 2}, preload=PRELOADED)
    settle(procs)
    yield procs
    procs.stop().get(_STOP_S)


@pytest.fixture
def three(hosts: HostMesh, procs: ProcMesh) -> Iterator[ProcMesh]:
    """Three procs along ``dp``, of which a test kills some."""
    found = hosts.slice(hosts=0).spawn_procs({"dp": 3}, preload=PRELOADED)
    settle(found)
    yield found
    found.stop().get(_STOP_S)
