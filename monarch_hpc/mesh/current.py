"""The place of the running code: all hosts of the program, this host, and this proc."""

from __future__ import annotations

from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.mesh.door import ProgramDoor, current_door
from monarch_hpc.mesh.host import HostMesh, hosts_of
from monarch_hpc.mesh.proc import ProcMesh, proc_of

__all__ = ["hosts", "this_host", "this_proc"]


def hosts() -> HostMesh:
    """All hosts of this program's allocation, in the program and in its procs.

    Under `monarch-hpc run` these are the hosts of the chosen allocation. A program started in another way gets the
    hosts of the Slurm job that it runs in or, outside a job, this machine as one embedded host; their agents end with
    the program.

    Returns:
        A mesh with the dimension ``hosts``.

    Raises:
        AllocationError: the allocation cannot be reached, or has ended; or the program runs in a job whose hosts it
            cannot use, e.g. as one of many tasks of `srun`.
        VersionMismatch: the allocation runs another version of Python or of this package.
    """
    door = _door()
    entries = list(door.hosts().values())
    region = Region.whole(Extent(("hosts",), (len(entries),)))
    return HostMesh(region, dict(enumerate(entries)), door.runtime.info.python, owned=True)


def this_host() -> HostMesh:
    """The host that this code runs on, as a mesh of one host without dimensions.

    In a program that runs outside its allocation, e.g. on a login node, it is the first host of the allocation: login
    nodes are not for work.

    Raises:
        AllocationError, VersionMismatch: as for `hosts`.
    """
    door = _door()
    return hosts_of(door, [max(door.runtime.info.host_rank, 0)])


def this_proc() -> ProcMesh:
    """The process that this code runs in, as a mesh of one proc without dimensions.

    In the program it is the program's own process: actors spawned there live in it and end with it. Calls within a
    process do not go through a socket; arguments and results are copied all the same.

    Raises:
        AllocationError, VersionMismatch: in the program, as for `hosts`.
    """
    return proc_of(_door().runtime)


def _door() -> ProgramDoor:
    """The door of this process, which becomes a program if it is not part of an allocation."""
    if Runtime.current is None:
        # Here, because procs import this module with their users' modules, and need no code for allocations.
        from monarch_hpc.mesh.program.controller import Controller

        Controller.instance()
    return current_door()
