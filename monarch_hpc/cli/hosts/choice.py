"""The hosts that a verb refers to, by name or rank."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from monarch_hpc.allocation.ready import check_allocation
from monarch_hpc.allocation.settings import name_of
from monarch_hpc.config import Config
from monarch_hpc.config.program import read_program
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.mesh.host import HostMesh, all_hosts, hosts_of
from monarch_hpc.mesh.program.controller import Controller
from monarch_hpc.mesh.shutdown import shutdown_context
from monarch_hpc.slurm import Allocations
from monarch_hpc.wire.control.allocation import HostEntry

__all__ = ["find_ranks", "open_hosts"]

_MAX_NAMED = 8
"""Names of hosts that an error lists: about a line."""


@contextlib.contextmanager
def open_hosts(config: Config, name: str | None, wanted: Sequence[str]) -> Iterator[HostMesh]:
    """Attach to an allocation; everything that is started through the yielded hosts ends with the context.

    Args:
        config: the configuration.
        name: the allocation; None for the one that `monarch-hpc run` started this command on, or for the usual choice.
        wanted: names or ranks of hosts; empty for all.

    Raises:
        AllocationError: the allocation has ended or is not ready, or has no such host.
    """
    directory, shown = _find(config, name)
    check_allocation(directory)
    controller = Controller.instance()
    try:
        allocation = controller.tenancies.at(directory, shown).allocation
        mesh = all_hosts(controller.door, allocation)
        if wanted:
            mesh = hosts_of(controller.door, allocation, find_ranks(shown, mesh.entries, wanted))
        yield mesh
    finally:
        # Also after Ctrl-C: a command must not outlive the one who waits for it.
        shutdown_context()


def find_ranks(name: str, hosts: Sequence[HostEntry], wanted: Sequence[str]) -> list[int]:
    """Return the ranks of the hosts that are *wanted*, each a name or a rank.

    Raises:
        AllocationError: the allocation called *name* has no such host.
    """
    ranks = {host.name: host.rank for host in hosts} | {str(host.rank): host.rank for host in hosts}
    for host in wanted:
        if host not in ranks:
            names = ", ".join(entry.name for entry in hosts[:_MAX_NAMED])
            more = f" and {len(hosts) - _MAX_NAMED} more" if len(hosts) > _MAX_NAMED else ""
            raise AllocationError(name, f"has no usable host '{host}' (hosts: {names}{more})")
    return [ranks[host] for host in wanted]


def _find(config: Config, name: str | None) -> tuple[Path, str]:
    program = read_program()
    if name is None and program.directory is not None:
        return program.directory, name_of(program.directory)
    record = Allocations.open(config).find(name)
    if record.ended is not None:
        raise AllocationError(record.name, f"has ended: {record.ended.state}: {record.ended.reason}")
    return record.directory, record.name
