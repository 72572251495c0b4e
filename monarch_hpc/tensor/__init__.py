"""Tensors on meshes: ordinary torch code in the program, which runs on all ranks of a mesh of procs.

    with procs.activate():
        x = torch.randn(4, 4)        # a value of its own on each rank
        y = (x @ x.T).reduce("gpus", "avg")
    print(inspect(y))

torch is imported with the first of these names that is used; see docs/tensors.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.core.errors import DeviceMeshError, RemoteOpError
    from monarch_hpc.tensor import random
    from monarch_hpc.tensor.active import activate, compile, get_active_mesh, no_mesh, rank_tensor, rank_tensors, sync
    from monarch_hpc.tensor.fetch import fetch_shard, inspect, show
    from monarch_hpc.tensor.functions import coalescing, reduce, reduce_, slice_mesh, to_mesh
    from monarch_hpc.tensor.gradients import grad_function, grad_generator
    from monarch_hpc.tensor.opaque.modules import OpaqueModule
    from monarch_hpc.tensor.opaque.objects import OpaqueObject, opaque_method
    from monarch_hpc.tensor.opaque.ref import OpaqueRef
    from monarch_hpc.tensor.ops.proxy import MeshTensor
    from monarch_hpc.tensor.process_groups import RemoteProcessGroup
    from monarch_hpc.tensor.remote_functions import Remote, call_on_shard_and_fetch, remote
    from monarch_hpc.tensor.streams.stream import Borrow, Stream, get_active_stream

_HOMES = {
    "Borrow": "tensor.streams.stream",
    "DeviceMeshError": "core.errors",
    "MeshTensor": "tensor.ops.proxy",
    "OpaqueModule": "tensor.opaque.modules",
    "OpaqueObject": "tensor.opaque.objects",
    "OpaqueRef": "tensor.opaque.ref",
    "Remote": "tensor.remote_functions",
    "RemoteOpError": "core.errors",
    "RemoteProcessGroup": "tensor.process_groups",
    "Stream": "tensor.streams.stream",
    "activate": "tensor.active",
    "call_on_shard_and_fetch": "tensor.remote_functions",
    "coalescing": "tensor.functions",
    "compile": "tensor.active",
    "fetch_shard": "tensor.fetch",
    "get_active_mesh": "tensor.active",
    "get_active_stream": "tensor.streams.stream",
    "grad_function": "tensor.gradients",
    "grad_generator": "tensor.gradients",
    "inspect": "tensor.fetch",
    "no_mesh": "tensor.active",
    "opaque_method": "tensor.opaque.objects",
    "random": "tensor.random:",
    "rank_tensor": "tensor.active",
    "rank_tensors": "tensor.active",
    "reduce": "tensor.functions",
    "reduce_": "tensor.functions",
    "remote": "tensor.remote_functions",
    "show": "tensor.fetch",
    "slice_mesh": "tensor.functions",
    "sync": "tensor.active",
    "to_mesh": "tensor.functions",
}

__all__ = [
    "Borrow",
    "DeviceMeshError",
    "MeshTensor",
    "OpaqueModule",
    "OpaqueObject",
    "OpaqueRef",
    "Remote",
    "RemoteOpError",
    "RemoteProcessGroup",
    "Stream",
    "activate",
    "call_on_shard_and_fetch",
    "coalescing",
    "compile",
    "fetch_shard",
    "get_active_mesh",
    "get_active_stream",
    "grad_function",
    "grad_generator",
    "inspect",
    "no_mesh",
    "opaque_method",
    "random",
    "rank_tensor",
    "rank_tensors",
    "reduce",
    "reduce_",
    "remote",
    "show",
    "slice_mesh",
    "sync",
    "to_mesh",
]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
