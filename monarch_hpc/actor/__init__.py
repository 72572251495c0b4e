"""Actors: objects in procs that handle messages one at a time, and the calls between them.

Exports all names of `monarch.actor`, with the same meaning. Names that live in layers above are loaded at first use.

`unhandled_fault_hook` is called with each `MeshFailure` that no owner handled. The default ends the program; assign a
function to replace it. The attribute is read when a failure happens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

# `context` and `endpoint` are functions here and modules too: importing the modules first lets the functions win.
from monarch_hpc.actor.context import Context, context, current_actor_name, current_rank, current_size
from monarch_hpc.actor.endpoint import Actor, concurrent_endpoint, endpoint
from monarch_hpc.actor.fault import MeshFailure, end_program
from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.actor import config
    from monarch_hpc.actor.endpoint_wrappers import wrap_endpoints
    from monarch_hpc.actor.future import Future
    from monarch_hpc.actor.local_future import returns_future
    from monarch_hpc.actor.metrics import get_meter
    from monarch_hpc.actor.ports.port import Channel, Port, PortReceiver
    from monarch_hpc.actor.spans import span, trace_endpoints, traced
    from monarch_hpc.actor.transports import ChannelTransport, attach, enable_transport
    from monarch_hpc.core.errors import ActorDied, ActorError, SupervisionError
    from monarch_hpc.core.shape import Extent, Point
    from monarch_hpc.core.uid import ProcId, Uid
    from monarch_hpc.mesh.actors import ActorMesh
    from monarch_hpc.mesh.bootstrap_command import BootstrapCommand, default_bootstrap_cmd
    from monarch_hpc.mesh.calls.accumulator import Accumulator
    from monarch_hpc.mesh.calls.as_endpoint import as_endpoint
    from monarch_hpc.mesh.calls.endpoint import Endpoint
    from monarch_hpc.mesh.calls.send import send
    from monarch_hpc.mesh.current import hosts, this_host, this_proc
    from monarch_hpc.mesh.host import HostMesh
    from monarch_hpc.mesh.proc import ProcMesh
    from monarch_hpc.mesh.program.registry import get_or_spawn_controller
    from monarch_hpc.mesh.shutdown import shutdown_context
    from monarch_hpc.mesh.value import ValueMesh
    from monarch_hpc.mesh.workers import (
        attach_to_workers,
        run_worker_loop_forever,
        run_worker_loop_until_shutdown,
        start_worker_loop_forever,
    )

unhandled_fault_hook: Callable[[MeshFailure], None] = end_program

_HOMES = {
    "Accumulator": "mesh.calls.accumulator",
    "ActorDied": "core.errors",
    "ActorError": "core.errors",
    "ActorMesh": "mesh.actors",
    "BootstrapCommand": "mesh.bootstrap_command",
    "Channel": "actor.ports.port",
    "ChannelTransport": "actor.transports",
    "Endpoint": "mesh.calls.endpoint",
    "Extent": "core.shape",
    "Future": "actor.future",
    "HostMesh": "mesh.host",
    "Point": "core.shape",
    "Port": "actor.ports.port",
    "PortReceiver": "actor.ports.port",
    "ProcId": "core.uid",
    "ProcMesh": "mesh.proc",
    "SupervisionError": "core.errors",
    "Uid": "core.uid",
    "ValueMesh": "mesh.value",
    "as_endpoint": "mesh.calls.as_endpoint",
    "attach": "actor.transports",
    "attach_to_workers": "mesh.workers",
    "config": "actor.config:",
    "default_bootstrap_cmd": "mesh.bootstrap_command",
    "enable_transport": "actor.transports",
    "get_meter": "actor.metrics",
    "get_or_spawn_controller": "mesh.program.registry",
    "hosts": "mesh.current",
    "returns_future": "actor.local_future",
    "run_worker_loop_forever": "mesh.workers",
    "run_worker_loop_until_shutdown": "mesh.workers",
    "send": "mesh.calls.send",
    "shutdown_context": "mesh.shutdown",
    "span": "actor.spans",
    "start_worker_loop_forever": "mesh.workers",
    "this_host": "mesh.current",
    "this_proc": "mesh.current",
    "trace_endpoints": "actor.spans",
    "traced": "actor.spans",
    "wrap_endpoints": "actor.endpoint_wrappers",
}

__all__ = [
    "Accumulator",
    "Actor",
    "ActorDied",
    "ActorError",
    "ActorMesh",
    "BootstrapCommand",
    "Channel",
    "ChannelTransport",
    "Context",
    "Endpoint",
    "Extent",
    "Future",
    "HostMesh",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcId",
    "ProcMesh",
    "SupervisionError",
    "Uid",
    "ValueMesh",
    "as_endpoint",
    "attach",
    "attach_to_workers",
    "concurrent_endpoint",
    "config",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "default_bootstrap_cmd",
    "enable_transport",
    "endpoint",
    "get_meter",
    "get_or_spawn_controller",
    "hosts",
    "returns_future",
    "run_worker_loop_forever",
    "run_worker_loop_until_shutdown",
    "send",
    "shutdown_context",
    "span",
    "start_worker_loop_forever",
    "this_host",
    "this_proc",
    "trace_endpoints",
    "traced",
    "unhandled_fault_hook",
    "wrap_endpoints",
]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
