"""monarch-hpc: program a Slurm allocation from one Python script.

    import monarch_hpc
    procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})

Names are loaded on first use, so that the command line starts without loading the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.actor.cell.invocation import ResponsePort
    from monarch_hpc.actor.context import Context, context, current_actor_name, current_rank, current_size
    from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
    from monarch_hpc.actor.fault import MeshFailure
    from monarch_hpc.actor.future import Future
    from monarch_hpc.actor.ports.port import Channel, Port, PortReceiver
    from monarch_hpc.actor.runtime.log_records import RecordHandler
    from monarch_hpc.core.errors import (
        ActorDied,
        ActorError,
        ActorFailed,
        AllocationError,
        CallTimeout,
        DeliveryUnknown,
        MeshError,
        MonarchError,
        PortClosed,
        ScriptFailed,
        SpawnError,
        SupervisionError,
    )
    from monarch_hpc.core.shape import Extent, Point
    from monarch_hpc.core.version import __version__
    from monarch_hpc.mesh.actors import ActorMesh
    from monarch_hpc.mesh.calls.accumulator import Accumulator
    from monarch_hpc.mesh.current import hosts, this_host, this_proc
    from monarch_hpc.mesh.host import HostMesh
    from monarch_hpc.mesh.proc import ProcMesh
    from monarch_hpc.mesh.program.registry import get_or_spawn_controller
    from monarch_hpc.mesh.scripts.script import run_script
    from monarch_hpc.mesh.scripts.spmd import spmd
    from monarch_hpc.mesh.value import ValueMesh
    from monarch_hpc.mesh.workers import attach_to_workers, run_worker_loop_forever

_HOMES = {
    "Accumulator": "mesh.calls.accumulator",
    "Actor": "actor.endpoint",
    "ActorDied": "core.errors",
    "ActorError": "core.errors",
    "ActorFailed": "core.errors",
    "ActorMesh": "mesh.actors",
    "AllocationError": "core.errors",
    "CallTimeout": "core.errors",
    "Channel": "actor.ports.port",
    "Context": "actor.context",
    "DeliveryUnknown": "core.errors",
    "Extent": "core.shape",
    "Future": "actor.future",
    "HostMesh": "mesh.host",
    "MeshError": "core.errors",
    "MeshFailure": "actor.fault",
    "MonarchError": "core.errors",
    "Point": "core.shape",
    "Port": "actor.ports.port",
    "PortClosed": "core.errors",
    "PortReceiver": "actor.ports.port",
    "ProcMesh": "mesh.proc",
    "RecordHandler": "actor.runtime.log_records",
    "ResponsePort": "actor.cell.invocation",
    "ScriptFailed": "core.errors",
    "SpawnError": "core.errors",
    "SupervisionError": "core.errors",
    "ValueMesh": "mesh.value",
    "__version__": "core.version",
    "attach_to_workers": "mesh.workers",
    "concurrent_endpoint": "actor.endpoint",
    "context": "actor.context",
    "current_actor_name": "actor.context",
    "current_rank": "actor.context",
    "current_size": "actor.context",
    "endpoint": "actor.endpoint",
    "get_or_spawn_controller": "mesh.program.registry",
    "hosts": "mesh.current",
    "run_script": "mesh.scripts.script",
    "run_worker_loop_forever": "mesh.workers",
    "spmd": "mesh.scripts.spmd",
    "this_host": "mesh.current",
    "this_proc": "mesh.current",
}

__all__ = [
    "Accumulator",
    "Actor",
    "ActorDied",
    "ActorError",
    "ActorFailed",
    "ActorMesh",
    "AllocationError",
    "CallTimeout",
    "Channel",
    "Context",
    "DeliveryUnknown",
    "Extent",
    "Future",
    "HostMesh",
    "MeshError",
    "MeshFailure",
    "MonarchError",
    "Point",
    "Port",
    "PortClosed",
    "PortReceiver",
    "ProcMesh",
    "RecordHandler",
    "ResponsePort",
    "ScriptFailed",
    "SpawnError",
    "SupervisionError",
    "ValueMesh",
    "__version__",
    "attach_to_workers",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "get_or_spawn_controller",
    "hosts",
    "run_script",
    "run_worker_loop_forever",
    "spmd",
    "this_host",
    "this_proc",
]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
