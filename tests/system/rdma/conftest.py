"""Fixtures shared by the tests of one-sided memory; each module has `hosts` and `owners` of its own."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from monarch_hpc import ActorMesh, HostMesh, ProcMesh
from tests.system.support.controlling import settle


@pytest.fixture(scope="module")
def procs(hosts: HostMesh) -> ProcMesh:
    """Two procs of the first host, whose fabrics are chosen; torch, where there is one, is imported once for both."""
    torch = ["torch"] if importlib.util.find_spec("torch") else []
    procs = hosts.slice(hosts=0).spawn_procs({"gpus": 2}, preload=torch)
    settle(procs)
    return procs


@pytest.fixture
def owner(owners: ActorMesh[Any]) -> ActorMesh[Any]:
    """The owner of memory in the first of them."""
    return owners.slice(gpus=0)
