"""The place of the running code: all hosts of the program, this host, and this proc.

The functions load what they need when they are called: the first use of hosts starts an agent before that.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from monarch_hpc.core.arguments import check_text
from monarch_hpc.core.process.imports import uncollected

if TYPE_CHECKING:
    from monarch_hpc.mesh.host import HostMesh
    from monarch_hpc.mesh.proc import ProcMesh

__all__ = ["attach", "hosts", "this_host", "this_proc"]


def attach(name: str | None = None, *, group: str | None = None) -> HostMesh:
    """All hosts of an allocation made by `monarch-hpc alloc`; for scripts and notebooks that `run` has not started.

    If the program uses no other allocation before, `hosts` and `this_host` mean this one from here on. What the program
    starts ends with it, and the allocation goes on: a restarted notebook kernel attaches again, as often as it likes.

    Args:
        name: the allocation; None for ``default``, or the only live one.
        group: only the hosts of this group, see `hosts`.

    Returns:
        A mesh with the dimension ``hosts``.

    Raises:
        AllocationError: there is no such allocation, it is not ready, or has ended.
        TypeError: the name or the group is not a string.
        ValueError: there is no such group.
        VersionMismatch: the allocation runs another version of Python or of this package.
    """
    if name is None:
        from monarch_hpc.mesh.program.allocations.opening import find_only

        name = find_only()
    return hosts(name, group=group)


def hosts(name: str | None = None, *, group: str | None = None) -> HostMesh:
    """All hosts of an allocation, in the program and in its procs.

    Without a name, the oldest allocation that the program uses, and in a proc its own. If the program uses none: under
    `monarch-hpc run` the chosen allocation; else the Slurm job that the program runs in or, outside a job, this machine
    as one embedded host, whose agents end with the program.

    Args:
        name: an allocation made by `monarch-hpc alloc`, which the program uses beside others; in procs, one that the
            program uses already.
        group: only the hosts of this group of an allocation with groups: a component of a heterogeneous job. Calls go
            from one group to another like all calls.

    Returns:
        A mesh with the dimension ``hosts``.

    Raises:
        AllocationError: the allocation cannot be reached, or has ended, or there is none of that name; or the program
            runs in a job whose hosts it cannot use, e.g. as one of many tasks of `srun`.
        TypeError: the name or the group is not a string.
        ValueError: there is no such group.
        VersionMismatch: the allocation runs another version of Python or of this package.
    """
    if name is not None:
        check_text("name", name, filled=True)
    if group is not None:
        check_text("group", group, filled=True)
    with _expecting(name):
        from monarch_hpc.mesh.door import current_door
        from monarch_hpc.mesh.host import all_hosts

        door = current_door()
        return all_hosts(door, door.allocation(name), group)


def this_host() -> HostMesh:
    """The host that this code runs on, as a mesh of one host without dimensions.

    A program whose machine belongs to no allocation that it uses gets an embedded host there. But if it uses Slurm
    allocations from outside, e.g. on a login node, it is the first host of the oldest of them: login nodes are not for
    work.

    Raises:
        AllocationError, VersionMismatch: as for `hosts`.
    """
    with _expecting():
        from monarch_hpc.mesh.door import current_door
        from monarch_hpc.mesh.host import hosts_of

        door = current_door()
        allocation, rank = door.here()
        return hosts_of(door, allocation, [rank])


def this_proc() -> ProcMesh:
    """The process that this code runs in, as a mesh of one proc without dimensions.

    In the program it is the program's own process: actors spawned there live in it and end with it. Calls within a
    process do not go through a socket; arguments and results are copied all the same.
    """
    from monarch_hpc.actor.runtime.runtime import current_runtime
    from monarch_hpc.mesh.proc import proc_of

    return proc_of(current_runtime())


@contextlib.contextmanager
def _expecting(name: str | None = None) -> Iterator[None]:
    """For the first use of hosts in a program: see `expect_embedded`."""
    runtime = sys.modules.get("monarch_hpc.actor.runtime.runtime")
    if name is not None or (runtime is not None and runtime.Runtime.current is not None):
        yield
        return
    with uncollected():
        from monarch_hpc.attach.local_agents import expect_embedded  # procs never need it

        with expect_embedded():
            yield
