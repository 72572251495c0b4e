"""The variables that torchrun sets, for the procs of a mesh; torch itself is not needed for it."""

from __future__ import annotations

import enum
import os
import runpy
import socket
import sys
from collections.abc import Sequence

from monarch_hpc.actor.context import context, current_rank
from monarch_hpc.actor.endpoint import Actor, endpoint
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import check_instance, check_number, check_text
from monarch_hpc.core.host_address import resolve_host
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.scripts.torchrun import TorchRank, retold_gpus
from monarch_hpc.transport.address import parse_address

__all__ = ["AddrType", "SPMDActor", "see_own_gpu", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]


_HOSTS = "hosts"


class AddrType(enum.Enum):
    """Which kind of address the rendezvous gets; `Default` prefers IPv6 where the host has it."""

    Default = enum.auto()
    IPv4 = enum.auto()
    IPv6 = enum.auto()


_FAMILIES = {
    AddrType.Default: (socket.AF_INET6, socket.AF_INET),
    AddrType.IPv4: (socket.AF_INET,),
    AddrType.IPv6: (socket.AF_INET6,),
}


class SPMDActor(Actor):
    """One rank of a program that torchrun could start: sets its variables, and runs a script with them.

    Ranks are the mesh's, row by row; the local rank is the coordinate in its last dimension, the procs of one host.
    """

    def __init__(self) -> None:
        point = current_rank()
        last = point.extent.labels[-1:]
        # A mesh that ends with the hosts' own dimension has one proc on each.
        several = bool(last) and last[0] != _HOSTS
        self.rank = point.rank
        self.world_size = len(point.extent)
        self.local_rank = point[last[0]] if several else 0
        self.local_world_size = point.extent[last[0]] if several else 1
        self.group_rank = self.rank // self.local_world_size
        self.group_world_size = -(-self.world_size // self.local_world_size)

    @endpoint
    def get_host_port(self, use_ipaddr: AddrType | None) -> tuple[str, int]:
        """Where rank 0 may serve the rendezvous: an address of this host, and a port that was free a moment ago.

        Args:
            use_ipaddr: which kind of address of the host's name; None for one that the agents' hosts reach each
                other by.

        Raises:
            OSError: the host's name has no such address.
        """
        host = _own_address() if use_ipaddr is None else _look_up(use_ipaddr)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            # Of all addresses, since torch's store will listen on all of them; this socket never listens.
            sock.bind(("", 0))
            return host, int(sock.getsockname()[1])

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Set torchrun's variables in this proc."""
        self._set_up(master_addr, master_port)

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: list[str]) -> bool:
        """Set the variables, and run a script to its end as the main program.

        Args:
            script_args: a path with its arguments, or ``-m`` and a module with its.

        Returns:
            True.

        Raises:
            ValueError: there is no script.
            Exception: what the script raises.
        """
        self._set_up(master_addr, master_port)
        module = script_args[:1] == ["-m"]
        argv = list(script_args[1:] if module else script_args)
        if not argv:
            raise ValueError("there is no script to run: give its path, or -m and a module")
        sys.argv = argv
        if module:
            runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(argv[0], run_name="__main__")
        return True

    def _set_up(self, master_addr: str, master_port: int) -> None:
        seat = TorchRank(
            rank=self.rank,
            world_size=self.world_size,
            local_rank=self.local_rank,
            local_world_size=self.local_world_size,
            group_rank=self.group_rank,
            group_world_size=self.group_world_size,
            role_name="rank",
            master_addr=master_addr,
            master_port=master_port,
        )
        os.environ.update(seat.variables())
        see_own_gpu(context().proc.gpus, self.local_rank)


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Set torchrun's variables in all procs of a mesh: ``torch.distributed.init_process_group()`` then needs no more.

    Args:
        proc_mesh: ranks row by row.
        master_addr, master_port: of the rendezvous, which rank 0 serves; both, or none for an address and a free port
            of its host.
        use_ipaddr: see `SPMDActor.get_host_port`.

    Raises:
        TypeError: an argument of another type.
        ValueError: one of the two was given, or the port is out of range.
    """
    actors, place = _begin(proc_mesh, master_addr, master_port, use_ipaddr)
    actors.setup_env.call(*(place.get() if isinstance(place, Future) else place)).get()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """`setup_torch_elastic_env` for coroutines."""
    actors, place = _begin(proc_mesh, master_addr, master_port, use_ipaddr)
    await actors.setup_env.call(*(await place if isinstance(place, Future) else place))


def _begin(
    proc_mesh: ProcMesh, master_addr: str | None, master_port: int | None, use_ipaddr: AddrType | None
) -> tuple[ActorMesh[SPMDActor], tuple[str, int] | Future[tuple[str, int]]]:
    check_instance("proc_mesh", proc_mesh, ProcMesh, "a mesh of procs, as spawn_procs returns it")
    if master_addr is not None:
        check_text("master_addr", master_addr, filled=True)
    if master_port is not None:
        check_number("master_port", master_port, least=1, most=65535)
    if use_ipaddr is not None:
        check_instance("use_ipaddr", use_ipaddr, AddrType, "AddrType.IPv4, AddrType.IPv6 or AddrType.Default")
    if (master_addr is None) != (master_port is None):
        raise ValueError(f"give master_addr and master_port both, or none: got {master_addr!r} and {master_port!r}")
    actors = proc_mesh.spawn("spmd", SPMDActor)
    if master_addr is not None and master_port is not None:
        return actors, (master_addr, master_port)
    first = actors.slice(**dict.fromkeys(actors.extent.labels, 0))
    return actors, first.get_host_port.call_one(use_ipaddr)


def see_own_gpu(gpus: Sequence[str], local_rank: int) -> None:
    """Make the proc's own GPU the device of its local rank, as scripts expect; in procs it is device 0 otherwise."""
    others = list(gpus[1:])
    seen = [*others[:local_rank], *gpus[:1], *others[local_rank:]]
    changes = retold_gpus(os.environ, gpus, seen)
    torch = sys.modules.get("torch")
    if changes and local_rank and torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(
            f"CUDA has started in this proc, where its own GPU is device 0, and not {local_rank}: set up "
            "torchrun's variables first, or use config key 'procs.gpu_visible': all"
        )
    os.environ.update(changes)


def _own_address() -> str:
    # Where other procs dial this one: a name may resolve to loopback, or to a network that is slow.
    return parse_address(current_runtime().own.addresses[0])[0]


def _look_up(kind: AddrType) -> str:
    name = socket.gethostname()
    for family in _FAMILIES[kind]:
        try:
            return resolve_host(name, family)[0]
        except OSError:
            continue
    raise OSError(f"host {name} has no {kind.name} address")
