"""Ranks of a sharded tensor that die, or fail where others do not.

The procs of the fixture are not used: what starts with the first procs of a host outlives a test.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from monarch_hpc import HostMesh, ProcMesh
from monarch_hpc.distributed import Mesh, distribute
from monarch_hpc.exceptions import DeviceMeshError
from monarch_hpc.tensor.sharded.procs import PRELOADED
from tests.system.support.controlling import settle


def _mesh(hosts: HostMesh) -> Mesh:
    procs = hosts.slice(hosts=0).spawn_procs({"dp": 2}, preload=PRELOADED)
    settle(procs)
    return Mesh(procs=procs)


def _read_on(dt: Any) -> None:
    for _ in range(10_000):
        dt.sum().item()  # a collective, in which the other rank may wait


def test_a_rank_that_dies_is_named_with_host_and_cause(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts)
    dt: Any = distribute(torch.arange(4.0), mesh, ["dp"])
    assert dt.sum().item() == 6.0
    os.kill(mesh.procs.procs[1].pid, signal.SIGKILL)
    with pytest.raises(DeviceMeshError, match="rank 1") as caught:
        _read_on(dt)
    error = caught.value
    assert (error.kind, error.rank) == ("died", 1)
    assert error.host and "signal 9" in error.cause and isinstance(error.last_lines, tuple)
    with pytest.raises(DeviceMeshError):
        dt + 1
    mesh.stop()
    again = _mesh(hosts)  # the program goes on
    assert distribute(torch.arange(4.0), again, ["dp"]).sum().item() == 6.0
    again.stop()


def _refuse_on_one(x: torch.Tensor) -> torch.Tensor:
    if x.to_local()[0] == 2:  # type: ignore[attr-defined]
        raise ArithmeticError("not here")
    return x


def _refuse_on_one_and_wait_on_the_other(x: torch.Tensor) -> torch.Tensor:
    return x + _refuse_on_one(x).full_tensor()[0]  # type: ignore[attr-defined, no-any-return]


def test_no_rank_waits_in_an_operation_for_one_that_failed_in_it(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts)
    dt: Any = distribute(torch.arange(4.0), mesh, ["dp"])
    mesh.execute(_refuse_on_one_and_wait_on_the_other, dt, propagate=lambda x: x)
    with pytest.raises(DeviceMeshError, match="not here") as caught:
        mesh.sync()
    assert caught.value.kind == "diverged" and "rank 1" in str(caught.value)
    mesh.stop()


def test_a_rank_that_fails_alone_has_diverged(hosts: HostMesh, procs: ProcMesh) -> None:
    mesh = _mesh(hosts)
    dt: Any = distribute(torch.arange(4.0), mesh, ["dp"])
    spoilt: Any = mesh.execute(_refuse_on_one, dt, propagate=lambda x: x)
    with pytest.raises(DeviceMeshError, match="not here") as caught:
        mesh.sync()
    assert (caught.value.kind, caught.value.rank) == ("diverged", 1)
    with pytest.raises(DeviceMeshError):
        spoilt.full_tensor()
    mesh.stop()
