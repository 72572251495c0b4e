"""The procs of meshes with sharded tensors."""

from __future__ import annotations

from typing import Any

from monarch_hpc.core.arguments import check_instance
from monarch_hpc.core.shape import Extent
from monarch_hpc.mesh.current import hosts as own_hosts
from monarch_hpc.mesh.host import HostMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.tensor.stream.engine import View

__all__ = ["NCCL_ENVIRONMENT", "PRELOADED", "arranged", "check_devices", "started"]

PRELOADED = ("torch", "torch._dynamo", "torch.distributed.tensor", "monarch_hpc.tensor.worker.sharded.sharding")
"""The modules that procs fork with: one that imports them itself takes two seconds for it, in a heal, too."""

NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
}
"""Variables by which torch's watchdog aborts communicators of NCCL that fail. By default it ends the process, with all
that the rank holds, where a heal needs what the ranks that live have. It asks the rendezvous each second for a request
to write a report, from a thread of C++ that takes the interpreter's lock, and gives the report a minute to be written
before it aborts anything."""


def started(extent: Extent, hosts: HostMesh | None, device: str) -> ProcMesh:
    """Procs for the mesh, evenly on all hosts."""
    found = own_hosts() if hosts is None else hosts
    check_instance("hosts", found, HostMesh, "a mesh of hosts, as monarch_hpc.hosts() returns it")
    num = len(found)
    if len(extent) % num:
        raise ValueError(f"{extent} has {len(extent)} ranks, which {num} hosts cannot share evenly: slice the hosts")
    env = NCCL_ENVIRONMENT if device == "cuda" else None
    procs = found.flatten("hosts").spawn_procs({"procs": len(extent) // num}, preload=PRELOADED, env=env)
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


def check_devices(view: View, device: str) -> None:
    """Ask each rank for its device.

    Raises:
        ValueError: a rank has none; the error says which, on which host.
    """
    lacks: list[str] = [one for one in view.workers.device.fold(list, device).get() if one]
    if lacks:
        more = f", and {len(lacks) - 1} more" if len(lacks) > 1 else ""
        raise ValueError(
            f"Mesh(device={device!r}): {lacks[0]}{more}; start the procs where each gets a GPU, such as "
            "spawn_procs({'gpus': 4}) on hosts with four, or leave out device="
        )
