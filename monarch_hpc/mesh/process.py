"""The main function of a proc, imported by zygotes together with the modules of this package that users import.

A module that defines actors imports `HostMesh`, `this_host` and the like. Loaded here, once per host and before procs
are forked, these cost a proc nothing; loaded in each of eight procs on two cores they took a quarter of a second.
"""

from __future__ import annotations

from monarch_hpc.actor.context import provide_instances
from monarch_hpc.actor.ports import port  # noqa: F401 loaded for the forked procs
from monarch_hpc.actor.runtime.main import serve
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.mesh import current  # noqa: F401 loaded for the forked procs
from monarch_hpc.mesh.calls import accumulator  # noqa: F401 the same
from monarch_hpc.mesh.instance import Instance
from monarch_hpc.mesh.program import registry  # noqa: F401 the same
from monarch_hpc.mesh.program.remote_door import RemoteDoor
from monarch_hpc.mesh.scripts import script, spmd  # noqa: F401 the same
from monarch_hpc.wire.start import ProcStart

__all__ = ["main"]


def main(start: ProcStart) -> int:
    """Serve actors until SIGTERM; return minus its number."""
    provide_instances(Instance)
    return serve(start, _open_door)


def _open_door(runtime: Runtime) -> None:
    runtime.door = RemoteDoor(runtime)
