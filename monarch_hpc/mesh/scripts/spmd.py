"""Sets up torch.distributed on a proc mesh; finds address and port, so that no environment variables are needed.

The only module that imports torch, and it does so only in procs.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import os
import socket
from collections.abc import Iterator
from typing import Any

from monarch_hpc.actor.context import current_rank
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.core.arguments import check_instance, check_text
from monarch_hpc.core.machine.interfaces import read_interfaces
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.transport.address import parse_address

__all__ = ["Spmd", "spmd"]

_TIMEOUT_S = 300.0
"""Time limit of set-up and collectives: the first collective may wait until the slowest rank has imported its libraries
from a cold file system."""


_GLOO = "monarch_hpc.tensor.worker.collectives.backend"
"""Process groups over gloo whose waits a later `Spmd.init` ends, by name: this layer does not depend on them."""

_gloo_ports: set[int] = set()
"""Ports at which the groups of this process have listened."""

_groups: list[Any] = []
"""The default group of this process and those that were made of it, if they are ours."""


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
        """Join the process group, instead of those that this process may have; return this rank.

        Args:
            backend: torch's name of the backend.
            port: port of the store on rank 0.
            addresses: IP addresses of all ranks, in order.
        """
        import torch.distributed as dist

        _drop_groups(dist)
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
        before = _listening_ports()
        try:
            if backend == "gloo":
                _groups.append(importlib.import_module(_GLOO).DefaultGroups(addresses[rank]))
                _groups[-1].join(self._store, rank, num_ranks, timeout)
            else:
                dist.init_process_group(backend, store=self._store, rank=rank, world_size=num_ranks, timeout=timeout)
        finally:
            _gloo_ports.update(_listening_ports() - before)
        return dist.get_rank()

    @endpoint
    def leave(self) -> None:
        """Leave the process group."""
        import torch.distributed as dist

        if _groups:
            _drop_groups(dist)
        elif dist.is_initialized():
            dist.destroy_process_group()


class Spmd:
    """torch.distributed on the procs of one mesh; ranks are those of the mesh, row by row."""

    def __init__(self, procs: ProcMesh) -> None:
        self._procs = procs
        self._members: ActorMesh[_Member] | None = None

    def init(self, backend: str = "gloo") -> None:
        """Set up the default process group on every proc; endpoints may then use `torch.distributed`.

        Blocks until all ranks have joined. Process groups that procs have already are dropped, whatever state they are
        in: call it again when procs of the mesh were replaced, see `ProcMesh.heal`. A collective of ``gloo`` that waits
        in an old group fails, also where gloo itself would go on waiting: its groups are ours, around gloo's.

        Args:
            backend: ``gloo`` for CPUs, whose name for torch is ``monarch_gloo``; ``nccl`` for NVIDIA GPUs; or another
                one that torch has, such as ``cpu:gloo``, its own gloo. A proc's own GPU is its current device (config
                key `procs.gpu_visible`), so code needs no local rank.

        Raises:
            TypeError: the backend is not a string.
            ValueError: the backend is empty.
            Exception: torch raised it on a rank.
        """
        check_text("backend", backend, filled=True)
        if self._members is not None:
            self._members.stop()
        # Others at each start: those of an earlier one may still wait in it for a rank that is gone.
        self._members = self._procs.spawn("spmd", _Member)
        addresses = [parse_address(proc.addresses[0])[0] for proc in self._procs.procs]
        first = self._members.slice(**dict.fromkeys(self._members.extent, 0))
        port = first.serve_store.call_one(addresses[0], len(addresses)).get()
        self._members.join.call(backend, port, addresses).get()

    def close(self) -> None:
        """Destroy the default process group on every proc; blocks until that is done.

        Raises:
            Exception: torch raised it on a rank.
        """
        if self._members is not None:
            self._members.leave.call().get()


def spmd(procs: ProcMesh) -> Spmd:
    """Prepare torch.distributed on *procs*: ``spmd(procs).init("gloo")``.

    Raises:
        TypeError: *procs* is not a `ProcMesh`.
    """
    check_instance("procs", procs, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    return Spmd(procs)


def _drop_groups(dist: Any) -> None:
    """Make this process as if it had never been in a process group.

    Ranks that have been in one, and those that replace others, then give groups the same names: torch counts them, and
    keeps the count, and what it has registered, when a start fails.
    """
    dropped, _groups[:] = list(_groups), []
    for groups in dropped:
        groups.end("its process group was closed: spmd(...) has set up another one, or none")
    for connection in _sockets():
        # A thread may wait in a collective for a rank that is gone, or for one that has given up. Each connection of
        # two ranks was accepted by one of them, which cuts it; gloo ends a process whose listener is cut.
        if not _listens(connection) and connection.getsockname()[1] in _gloo_ports:
            with contextlib.suppress(OSError):  # it is closed at the other end
                connection.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(Exception):  # half-made groups cannot be destroyed
        dist.destroy_process_group()
    c10d = dist.distributed_c10d
    world = c10d._world
    c10d._update_default_pg(None)
    for registered in (
        world.pg_map,
        world.pg_names,
        world.pg_group_ranks,
        world.pg_backend_config,
        world.pg_to_tag,
        world.tags_to_pg,
        world.pg_coalesce_state,
    ):
        registered.clear()
    c10d._unregister_all_process_groups()
    world.group_count = 0
    for groups in dropped:
        groups.retire()


def _listening_ports() -> set[int]:
    return {found.getsockname()[1] for found in _sockets() if _listens(found)}


def _listens(found: socket.socket) -> bool:
    return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _sockets() -> Iterator[socket.socket]:
    """The TCP sockets of this process, each as another descriptor that is closed afterwards."""
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = os.dup(int(name))
        except OSError:  # closed meanwhile
            continue
        try:
            found = socket.socket(fileno=copy)
        except OSError:  # not a socket
            os.close(copy)
            continue
        with found:
            if found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM:
                yield found
