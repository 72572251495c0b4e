"""Tensors that are sharded over a mesh of ranks, which may die; training: see docs/tensors.md and docs/healing.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.tensor.healing.heal import grow_mesh, heal_mesh
    from monarch_hpc.tensor.ops.proxy import MeshTensor
    from monarch_hpc.tensor.sharded.distribution import distribute
    from monarch_hpc.tensor.sharded.mesh import Mesh
    from monarch_hpc.tensor.sharded.module import module_to_mesh
    from monarch_hpc.tensor.training.optimizer import RemoteOptimizer

_HOMES = {
    "Mesh": "tensor.sharded.mesh",
    "MeshTensor": "tensor.ops.proxy",
    "RemoteOptimizer": "tensor.training.optimizer",
    "distribute": "tensor.sharded.distribution",
    "grow_mesh": "tensor.healing.heal",
    "heal_mesh": "tensor.healing.heal",
    "module_to_mesh": "tensor.sharded.module",
}

__all__ = ["Mesh", "MeshTensor", "RemoteOptimizer", "distribute", "grow_mesh", "heal_mesh", "module_to_mesh"]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
