"""Modules whose parameters are sharded tensors, so that the program runs them operation by operation."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

from monarch_hpc.core.arguments import check_instance
from monarch_hpc.tensor.sharded.mesh import Mesh, distribute
from monarch_hpc.tensor.sharded.spec import ShardingSpec, place_dims

__all__ = ["module_to_mesh"]


def module_to_mesh(module: nn.Module, mesh: Mesh, plan: Mapping[str, ShardingSpec | None] | None = None) -> nn.Module:
    """A copy of *module* with its parameters and buffers on a mesh; the module itself stays as it is.

    Args:
        module: any module; tensors that it shares stay shared.
        mesh: the mesh.
        plan: sharding specifications by the names of parameters and buffers, see `distribute`; each rank has a copy of
            the others.

    Raises:
        KeyError: *module* has no parameter or buffer of a name, or the mesh no dimension of one in a specification.
        ValueError: a specification is too long, or names a dimension twice.
    """
    check_instance("module", module, nn.Module, "an nn.Module")
    check_instance("mesh", mesh, Mesh, "a Mesh, see monarch_hpc.distributed.Mesh")
    specs = dict(plan or {})
    named = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    for name, spec in specs.items():
        if name not in named:
            raise KeyError(f"plan names {name!r}; the module has: {', '.join(named) or 'nothing'}")
        place_dims(spec, named[name].dim(), mesh.procs.region.extent)  # before anything is sent
    copies: dict[int, Any] = {}
    for name, tensor in named.items():
        if id(tensor) in copies and name not in specs:
            continue
        placed: Any = distribute(tensor.detach(), mesh, specs.get(name))
        if isinstance(tensor, nn.Parameter):
            placed = nn.Parameter(placed, requires_grad=tensor.requires_grad)
        copies[id(tensor)] = placed
    placed_module = copy.deepcopy(module, copies)
    mesh.begin_version()
    return placed_module
