"""The main function of a proc, imported by zygotes together with the modules of this package that users import.

A module that defines actors imports `HostMesh`, `this_host` and the like. Loaded here, once per host and before procs
are forked, these cost a proc nothing; loaded in each of eight procs on two cores they took a quarter of a second.
"""

from __future__ import annotations

from monarch_hpc.actor.context import provide_instances
from monarch_hpc.actor.kept.keeper import open_keeper
from monarch_hpc.actor.ports.sent_response import send_response_ports
from monarch_hpc.actor.runtime.main import serve
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.mesh import host  # noqa: F401 loaded for the forked procs
from monarch_hpc.mesh.instance import Instance
from monarch_hpc.mesh.program.remote_door import RemoteDoor
from monarch_hpc.wire.start import ProcStart

__all__ = ["LATER", "main"]

LATER = (
    "monarch_hpc.mesh.current",
    "monarch_hpc.mesh.healing.heal",
    "monarch_hpc.actor.execution.event_loop",
    "monarch_hpc.actor.ports.port",
    "monarch_hpc.actor.spans",
    "monarch_hpc.mesh.calls.accumulator",
    "monarch_hpc.core.ndslice",
    "monarch_hpc.mesh.program.registry",
    "monarch_hpc.mesh.scripts.script",
    "monarch_hpc.mesh.scripts.spmd",
    "monarch_hpc.config.runtime_layer",
    "hashlib",
)
"""More of them, which many programs never use: zygotes load these while they wait, and before they fork several procs.

A program that starts waits for the first proc alone.
"""


def main(start: ProcStart) -> int:
    """Serve actors until SIGTERM; return minus its number."""
    provide_instances(Instance)
    send_response_ports()
    return serve(start, _open_door)


def _open_door(runtime: Runtime) -> None:
    runtime.door = RemoteDoor(runtime)
    open_keeper(runtime)
