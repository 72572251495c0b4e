"""Sets up torch.distributed on a proc mesh; finds address and port, so that no environment variables are needed.

The only module that imports torch, and it does so only in procs.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from monarch_hpc.actor.context import current_rank
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.core.arguments import check_instance, check_text
from monarch_hpc.core.machine.interfaces import read_interfaces
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.transport.address import parse_address

__all__ = ["Spmd", "spmd"]

_TIMEOUT_S = 300.0
"""Time limit of set-up and collectives: the first collective may wait until the slowest rank has imported its libraries
from a cold file system."""


class _Member(Actor):
    """One rank of the process group."""

    def __init__(self) -> None:
        self._store: Any = None

    @endpoint
    def serve_store(self, address: str, num_ranks: int) -> int:
        """Serve the rendezvous store in this proc; return its port, chosen by the kernel and already bound."""
        import torch.distributed as dist

        timeout = datetime.timedelta(seconds=_TIMEOUT_S)
        self._store = dist.TCPStore(  # type: ignore[attr-defined]
            address, 0, num_ranks, is_master=True, timeout=timeout, wait_for_workers=False
        )
        return int(self._store.port)

    @endpoint
    def join(self, backend: str, port: int, addresses: list[str]) -> int:
        """Join the process group; return this rank.

        Args:
            backend: torch's name of the backend.
            port: port of the store on rank 0.
            addresses: IP addresses of all ranks, in order.
        """
        import torch.distributed as dist

        rank = current_rank().rank
        num_ranks = len(addresses)
        timeout = datetime.timedelta(seconds=_TIMEOUT_S)
        # By default gloo and nccl derive an interface from the host's name, which on clusters is often the wrong one.
        for name, address in read_interfaces().items():
            if address == addresses[rank]:
                os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
        if self._store is None:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                addresses[0], port, num_ranks, is_master=False, timeout=timeout
            )
        dist.init_process_group(backend, store=self._store, rank=rank, world_size=num_ranks, timeout=timeout)
        return dist.get_rank()

    @endpoint
    def leave(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


class Spmd:
    """torch.distributed on the procs of one mesh; ranks are those of the mesh, row by row."""

    def __init__(self, procs: ProcMesh) -> None:
        self._procs = procs
        self._members = procs.spawn("spmd", _Member)

    def init(self, backend: str = "gloo") -> None:
        """Set up the default process group on every proc; endpoints may then use `torch.distributed`.

        Blocks until all ranks have joined.

        Args:
            backend: ``gloo`` for CPUs, ``nccl`` for NVIDIA GPUs, or another backend that torch has. A proc's own GPU
                is its current device (config key `procs.gpu_visible`), so code needs no local rank.

        Raises:
            TypeError: the backend is not a string.
            ValueError: the backend is empty.
            Exception: torch raised it on a rank.
        """
        check_text("backend", backend, filled=True)
        addresses = [parse_address(proc.addresses[0])[0] for proc in self._procs.procs]
        first = self._members.slice(**dict.fromkeys(self._members.extent, 0))
        port = first.serve_store.call_one(addresses[0], len(addresses)).get()
        self._members.join.call(backend, port, addresses).get()

    def close(self) -> None:
        """Destroy the default process group on every proc; blocks until that is done.

        Raises:
            Exception: torch raised it on a rank.
        """
        self._members.leave.call().get()


def spmd(procs: ProcMesh) -> Spmd:
    """Prepare torch.distributed on *procs*: ``spmd(procs).init("gloo")``.

    Raises:
        TypeError: *procs* is not a `ProcMesh`.
    """
    check_instance("procs", procs, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    return Spmd(procs)
