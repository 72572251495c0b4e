"""monarch-hpc: program a Slurm allocation from one Python script.

    import monarch_hpc
    procs = monarch_hpc.hosts().spawn_procs(per_host={"gpus": 2})

Names are loaded on first use, so that the command line starts without loading the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.actor.cell.response_port import ResponsePort
    from monarch_hpc.actor.context import Context, context, current_actor_name, current_rank, current_size
    from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
    from monarch_hpc.actor.fault import MeshFailure
    from monarch_hpc.actor.future import Future
    from monarch_hpc.actor.metrics import get_meter, log_metric
    from monarch_hpc.actor.ports.port import Channel, Port, PortReceiver
    from monarch_hpc.actor.runtime.log_records import RecordHandler
    from monarch_hpc.actor.spans import span, traced
    from monarch_hpc.config.runtime_layer import clear_runtime_config, configure, configured, get_runtime_config
    from monarch_hpc.core.death import DeathKind
    from monarch_hpc.core.errors import (
        ActorDied,
        ActorError,
        ActorFailed,
        AllocationError,
        CallTimeout,
        DeliveryUnknown,
        HostLost,
        MeshDied,
        MeshError,
        MonarchError,
        PoisonMessage,
        PortClosed,
        ProcDied,
        ScriptFailed,
        SpawnError,
        SupervisionError,
    )
    from monarch_hpc.core.ndslice import NDSlice, Shape
    from monarch_hpc.core.shape import Extent, Point
    from monarch_hpc.core.version import __version__
    from monarch_hpc.mesh.actors import ActorMesh
    from monarch_hpc.mesh.calls.accumulator import Accumulator
    from monarch_hpc.mesh.calls.progress import progress
    from monarch_hpc.mesh.current import attach, hosts, this_host, this_proc
    from monarch_hpc.mesh.healing.heal import Healed, heal_mesh
    from monarch_hpc.mesh.host import HostMesh
    from monarch_hpc.mesh.proc import ProcMesh
    from monarch_hpc.mesh.program.kept.kept_mesh import KeptMesh
    from monarch_hpc.mesh.program.kept.open_kept import kept
    from monarch_hpc.mesh.program.notice import on_deadline, seconds_left
    from monarch_hpc.mesh.program.registry import get_or_spawn_controller
    from monarch_hpc.mesh.program.takeover.take_over import takeover
    from monarch_hpc.mesh.program.takeover.taken_run import TakenRun, UnfetchedAnswer
    from monarch_hpc.mesh.scripts.script import run_script
    from monarch_hpc.mesh.scripts.spmd import spmd
    from monarch_hpc.mesh.value import ValueMesh
    from monarch_hpc.mesh.workers import attach_to_workers, run_worker_loop_forever
    from monarch_hpc.slurm.requeue import requeue
    from monarch_hpc.submitit.batch import batch
    from monarch_hpc.supervision.policy import Restart

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
    "DeathKind": "core.death",
    "DeliveryUnknown": "core.errors",
    "Extent": "core.shape",
    "Future": "actor.future",
    "Healed": "mesh.healing.heal",
    "HostLost": "core.errors",
    "HostMesh": "mesh.host",
    "KeptMesh": "mesh.program.kept.kept_mesh",
    "MeshDied": "core.errors",
    "MeshError": "core.errors",
    "MeshFailure": "actor.fault",
    "MonarchError": "core.errors",
    "NDSlice": "core.ndslice",
    "Point": "core.shape",
    "Port": "actor.ports.port",
    "PoisonMessage": "core.errors",
    "PortClosed": "core.errors",
    "ProcDied": "core.errors",
    "PortReceiver": "actor.ports.port",
    "ProcMesh": "mesh.proc",
    "RecordHandler": "actor.runtime.log_records",
    "ResponsePort": "actor.cell.response_port",
    "Restart": "supervision.policy",
    "ScriptFailed": "core.errors",
    "Shape": "core.ndslice",
    "SpawnError": "core.errors",
    "SupervisionError": "core.errors",
    "TakenRun": "mesh.program.takeover.taken_run",
    "UnfetchedAnswer": "mesh.program.takeover.taken_run",
    "ValueMesh": "mesh.value",
    "__version__": "core.version",
    "attach": "mesh.current",
    "attach_to_workers": "mesh.workers",
    "batch": "submitit.batch",
    "clear_runtime_config": "config.runtime_layer",
    "concurrent_endpoint": "actor.endpoint",
    "configure": "config.runtime_layer",
    "configured": "config.runtime_layer",
    "context": "actor.context",
    "current_actor_name": "actor.context",
    "current_rank": "actor.context",
    "current_size": "actor.context",
    "endpoint": "actor.endpoint",
    "get_meter": "actor.metrics",
    "get_or_spawn_controller": "mesh.program.registry",
    "get_runtime_config": "config.runtime_layer",
    "heal_mesh": "mesh.healing.heal",
    "hosts": "mesh.current",
    "kept": "mesh.program.kept.open_kept",
    "log_metric": "actor.metrics",
    "on_deadline": "mesh.program.notice",
    "requeue": "slurm.requeue",
    "progress": "mesh.calls.progress",
    "run_script": "mesh.scripts.script",
    "run_worker_loop_forever": "mesh.workers",
    "seconds_left": "mesh.program.notice",
    "span": "actor.spans",
    "spmd": "mesh.scripts.spmd",
    "takeover": "mesh.program.takeover.take_over",
    "this_host": "mesh.current",
    "this_proc": "mesh.current",
    "traced": "actor.spans",
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
    "DeathKind",
    "DeliveryUnknown",
    "Extent",
    "Future",
    "Healed",
    "HostLost",
    "HostMesh",
    "KeptMesh",
    "MeshDied",
    "MeshError",
    "MeshFailure",
    "MonarchError",
    "NDSlice",
    "Point",
    "PoisonMessage",
    "Port",
    "PortClosed",
    "PortReceiver",
    "ProcDied",
    "ProcMesh",
    "RecordHandler",
    "ResponsePort",
    "Restart",
    "ScriptFailed",
    "Shape",
    "SpawnError",
    "SupervisionError",
    "TakenRun",
    "UnfetchedAnswer",
    "ValueMesh",
    "__version__",
    "attach",
    "attach_to_workers",
    "batch",
    "clear_runtime_config",
    "concurrent_endpoint",
    "configure",
    "configured",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "get_runtime_config",
    "heal_mesh",
    "hosts",
    "kept",
    "log_metric",
    "on_deadline",
    "progress",
    "requeue",
    "run_script",
    "run_worker_loop_forever",
    "seconds_left",
    "span",
    "spmd",
    "takeover",
    "this_host",
    "this_proc",
    "traced",
]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
