"""The procs of meshes with sharded tensors."""

from __future__ import annotations

from typing import Any

from monarch_hpc.core.arguments import check_instance
from monarch_hpc.core.shape import Extent
from monarch_hpc.mesh.current import hosts as own_hosts
from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.proc import ProcMesh

__all__ = ["PRELOADED", "arranged", "started"]

PRELOADED = ("torch", "torch._dynamo", "torch.distributed.tensor", "monarch_hpc.tensor.worker.sharded.sharding")
"""The modules that procs fork with: one that imports them itself takes two seconds for it, in a heal, too."""


def started(extent: Extent, hosts: HostMesh | None) -> ProcMesh:
    """Procs for the mesh, evenly on all hosts."""
    found = own_hosts() if hosts is None else hosts
    check_instance("hosts", found, HostMesh, "a mesh of hosts, as monarch_hpc.hosts() returns it")
    num = len(found)
    if len(extent) % num:
        raise ValueError(f"{extent} has {len(extent)} ranks, which {num} hosts cannot share evenly: slice the hosts")
    procs = found.flatten("hosts").spawn_procs({"procs": len(extent) // num}, preload=PRELOADED)
    return arranged(procs, extent)


def arranged(procs: ProcMesh, extent: Extent) -> ProcMesh:
    """The procs with the dimensions of the mesh."""
    if procs.region.extent == extent:
        return procs
    if len(procs.region) != len(extent):
        raise ValueError(f"shape {extent.shape} has {len(extent)} ranks, but there are {len(procs.region)} procs")
    parts: dict[str, Any] = {"procs": extent.names}
    if len(extent.names) > 1:
        parts.update(extent.to_dict())
    return procs.flatten("procs").split(**parts)
