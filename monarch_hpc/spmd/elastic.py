"""Sets torchrun's environment variables in the procs of a mesh; does not need torch."""

from __future__ import annotations

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
from monarch_hpc.core.errors import ScriptFailed
from monarch_hpc.core.process.exit import Exit
from monarch_hpc.core.text.description import text_of
from monarch_hpc.mesh.actors import ActorMesh
from monarch_hpc.mesh.proc import ProcMesh
from monarch_hpc.mesh.scripts.torchrun import TorchRank, gpu_changes
from monarch_hpc.tools.network import AddrType, get_ipaddr
from monarch_hpc.transport.address import parse_address

__all__ = ["SPMDActor", "see_own_gpu", "setup_torch_elastic_env", "setup_torch_elastic_env_async"]


_HOSTS = "hosts"


class SPMDActor(Actor):
    """One rank of a program written for torchrun: sets torchrun's variables, and runs a script with them.

    Ranks are those of the mesh, row by row. The local rank is the coordinate in the last dimension, whose procs must
    share a host; it is 0 if the last dimension is ``hosts``, or there is no dimension.
    """

    def __init__(self) -> None:
        point = current_rank()
        last = point.extent.labels[-1:]
        # If the last dimension is that of the hosts, there is one proc on each host.
        several = bool(last) and last[0] != _HOSTS
        self.rank = point.rank
        self.world_size = len(point.extent)
        self.local_rank = point[last[0]] if several else 0
        self.local_world_size = point.extent[last[0]] if several else 1
        self.group_rank = self.rank // self.local_world_size
        self.group_world_size = -(-self.world_size // self.local_world_size)

    @endpoint
    def get_host_port(self, use_ipaddr: AddrType | None) -> tuple[str, int]:
        """Return an address of this host, and a port that is free at the moment, for the rendezvous of rank 0.

        Args:
            use_ipaddr: kind of the address, to which the host's name is resolved; None for the address at which other
                procs dial this one.

        Raises:
            OSError: the host's name has no such address.
        """
        host = _own_address() if use_ipaddr is None else get_ipaddr(socket.gethostname(), 0, use_ipaddr)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            # Bound on all addresses, since torch's store will listen on all of them; this socket never listens.
            sock.bind(("", 0))
            return host, int(sock.getsockname()[1])

    @endpoint
    def setup_env(self, master_addr: str, master_port: int) -> None:
        """Set torchrun's variables in this proc."""
        self._set_up(master_addr, master_port)

    @endpoint
    def main(self, master_addr: str, master_port: int, script_args: list[str]) -> bool:
        """Set torchrun's variables in this proc, and run a script to its end as the main program.

        Args:
            master_addr: address of the rendezvous, which rank 0 serves.
            master_port: port of the rendezvous.
            script_args: path of the script, or ``-m`` and the name of a module; then its arguments.

        Returns:
            True; also if the script has called `sys.exit` with None or 0.

        Raises:
            ValueError: *script_args* names no script.
            ScriptFailed: the script has called `sys.exit` with anything else.
            Exception: the script raised it.
        """
        self._set_up(master_addr, master_port)
        module = script_args[:1] == ["-m"]
        argv = list(script_args[1:] if module else script_args)
        if not argv:
            raise ValueError("there is no script to run: give its path, or -m and a module")
        sys.argv = argv
        try:
            if module:
                runpy.run_module(argv[0], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(argv[0], run_name="__main__")
        except SystemExit as leaving:  # the end of a script, and not of this actor
            if leaving.code not in (None, 0):
                where = f"{argv[0]}, rank {self.rank} on {context().proc.host},"
                raise _failed(where, leaving.code) from None
        return True

    def _set_up(self, master_addr: str, master_port: int) -> None:
        torch_rank = TorchRank(
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
        os.environ.update(torch_rank.variables())
        see_own_gpu(context().proc.gpus, self.local_rank)


def _failed(where: str, code: object) -> ScriptFailed:
    """The error for a script that has called `sys.exit` with *code*."""
    if isinstance(code, int):
        return ScriptFailed(where, code & 0xFF, str(Exit(code & 0xFF, None)))
    return ScriptFailed(where, 1, f"{Exit(1, None)}: {text_of(code)}")


def setup_torch_elastic_env(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """Set torchrun's variables in all procs of a mesh; ``torch.distributed.init_process_group()`` then needs no more.

    Blocks until the variables are set in all procs.

    Args:
        proc_mesh: the procs; ranks are those of the mesh, row by row.
        master_addr, master_port: address and port of the rendezvous, which rank 0 serves; give both, or neither for an
            address and a free port of rank 0's host.
        use_ipaddr: kind of that address, see `SPMDActor.get_host_port`.

    Raises:
        TypeError: an argument of another type.
        ValueError: only one of *master_addr* and *master_port* was given, the address is empty, or the port is not
            in 1-65535.
        OSError: the name of rank 0's host has no address of the kind *use_ipaddr*.
        RuntimeError: CUDA has started in a proc already, where the proc's own GPU is device 0.
    """
    actors, place = _begin(proc_mesh, master_addr, master_port, use_ipaddr)
    actors.setup_env.call(*(place.get() if isinstance(place, Future) else place)).get()


async def setup_torch_elastic_env_async(
    proc_mesh: ProcMesh,
    master_addr: str | None = None,
    master_port: int | None = None,
    use_ipaddr: AddrType | None = None,
) -> None:
    """`setup_torch_elastic_env` for coroutines; returns when the variables are set in all procs."""
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
        raise ValueError(f"give both master_addr and master_port, or neither: got {master_addr!r} and {master_port!r}")
    actors = proc_mesh.spawn("spmd", SPMDActor)
    if master_addr is not None and master_port is not None:
        return actors, (master_addr, master_port)
    first = actors.slice(**dict.fromkeys(actors.extent, 0))
    return actors, first.get_host_port.call_one(use_ipaddr)


def see_own_gpu(gpus: Sequence[str], local_rank: int) -> None:
    """Make the proc's own GPU the device with the index of its local rank, as scripts expect, instead of device 0.

    Raises:
        RuntimeError: CUDA has started in this proc, and would not see the change.
    """
    others = list(gpus[1:])
    seen = [*others[:local_rank], *gpus[:1], *others[local_rank:]]
    changes = gpu_changes(os.environ, gpus, seen)
    torch = sys.modules.get("torch")
    if changes and local_rank and torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(
            f"CUDA has started in this proc, where its own GPU is device 0, and not {local_rank}: set up "
            "torchrun's variables first, or use config key 'procs.gpu_visible': all"
        )
    os.environ.update(changes)


def _own_address() -> str:
    # The address at which other procs dial this one: the host's name may resolve to loopback, or to a slow network.
    return parse_address(current_runtime().own.addresses[0])[0]
