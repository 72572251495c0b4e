"""Ranks that die, and programs that notice."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from monarch_hpc import ProcMesh
from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.distributed import Mesh
from monarch_hpc.tensor import fetch_shard

__all__ = ["check_lost", "die", "kill", "read_until_lost", "reduce_until_lost"]

_GET_S = 60.0


def die(mesh: Mesh, rank: int) -> None:
    """Kill a rank."""
    os.kill(mesh.procs.procs[rank].pid, signal.SIGKILL)


def read_until_lost(tensor: Any) -> None:
    """Read sums, in whose collectives ranks may wait for the dead one."""
    for _ in range(10_000):
        tensor.sum().item()


def reduce_until_lost(value: Any, rank: int) -> None:
    """Read sums of all ranks, on one of them."""
    for _ in range(10_000):
        fetch_shard(value.reduce("dp"), dp=rank).get(_GET_S)


def kill(procs: ProcMesh, rank: int, value: Any) -> None:
    """Kill a rank, and have the program get the error."""
    os.kill(procs.procs[rank].pid, signal.SIGKILL)
    with pytest.raises(DeviceMeshError, match=r"heal\(\) of its procs starts it again") as died:
        reduce_until_lost(value, (rank + 1) % len(procs))
    assert (died.value.kind, died.value.rank) == ("died", rank)


def check_lost(caught: Any, rank: int, shown: str) -> None:
    """Check that the error is about a lost value."""
    assert (caught.value.kind, caught.value.rank) == ("lost", rank)
    assert shown in str(caught.value) and "t.data = " in str(caught.value)
