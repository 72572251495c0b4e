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
    from monarch_hpc.tensor.active import activate, compile, no_mesh, rank_tensor, rank_tensors, sync
    from monarch_hpc.tensor.fetch import fetch_shard, inspect, show
    from monarch_hpc.tensor.gradients import grad_function, grad_generator
    from monarch_hpc.tensor.ops.proxy import MeshTensor
    from monarch_hpc.tensor.remote_functions import Remote, call_on_shard_and_fetch, remote

_HOMES = {
    "DeviceMeshError": "core.errors",
    "MeshTensor": "tensor.ops.proxy",
    "Remote": "tensor.remote_functions",
    "RemoteOpError": "core.errors",
    "activate": "tensor.active",
    "call_on_shard_and_fetch": "tensor.remote_functions",
    "compile": "tensor.active",
    "fetch_shard": "tensor.fetch",
    "grad_function": "tensor.gradients",
    "grad_generator": "tensor.gradients",
    "inspect": "tensor.fetch",
    "no_mesh": "tensor.active",
    "random": "tensor.random:",
    "rank_tensor": "tensor.active",
    "rank_tensors": "tensor.active",
    "remote": "tensor.remote_functions",
    "show": "tensor.fetch",
    "sync": "tensor.active",
}

__all__ = [
    "DeviceMeshError",
    "MeshTensor",
    "Remote",
    "RemoteOpError",
    "activate",
    "call_on_shard_and_fetch",
    "compile",
    "fetch_shard",
    "grad_function",
    "grad_generator",
    "inspect",
    "no_mesh",
    "random",
    "rank_tensor",
    "rank_tensors",
    "remote",
    "show",
    "sync",
]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
