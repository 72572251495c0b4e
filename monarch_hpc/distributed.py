"""Tensors that are sharded over a mesh of ranks, whose ranks may die: see docs/tensors.md and docs/healing.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monarch_hpc.core.lazy_face import lazy_face

if TYPE_CHECKING:
    from monarch_hpc.tensor.healing.heal import heal_mesh
    from monarch_hpc.tensor.ops.proxy import MeshTensor
    from monarch_hpc.tensor.sharded.mesh import Mesh, distribute
    from monarch_hpc.tensor.sharded.module import module_to_mesh

_HOMES = {
    "Mesh": "tensor.sharded.mesh",
    "MeshTensor": "tensor.ops.proxy",
    "distribute": "tensor.sharded.mesh",
    "heal_mesh": "tensor.healing.heal",
    "module_to_mesh": "tensor.sharded.module",
}

__all__ = ["Mesh", "MeshTensor", "distribute", "heal_mesh", "module_to_mesh"]

__getattr__, __dir__ = lazy_face(__name__, _HOMES, __all__)
