"""Modules on meshes: run operation by operation by the program, or living on the ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from monarch_hpc.core.arguments import check_callable, check_instance
from monarch_hpc.tensor.sharded.distribution import distribute
from monarch_hpc.tensor.sharded.mesh import Mesh
from monarch_hpc.tensor.sharded.spec import ShardingSpec, place_dims
from monarch_hpc.tensor.training.modules import remote_module

__all__ = ["module_to_mesh"]

_MAX_DIMS = 64
"""The number of dimensions that a result of a module may have, for the check of out_spec: torch has no more."""


def module_to_mesh(
    module: nn.Module,
    mesh: Mesh,
    plan: Mapping[str, ShardingSpec | None] | None = None,
    *,
    remote: bool = False,
    parallelize: Callable[..., Any] | None = None,
    out_spec: ShardingSpec | None = None,
    compile: str | bool = False,
) -> nn.Module:
    """A copy of *module* on a mesh; the module itself stays as it is.

    Without *remote*, its parameters and buffers are sharded tensors, and the program runs it operation by operation.
    With *remote*, it lives on the ranks, and a call is one message. With *parallelize*, *compile* or *out_spec*, it is
    a plain module there: it gets this rank's parts of its arguments, and its results are parts of the whole. Gradients
    are those of the global loss, also of DistributedDataParallel and `fully_shard`, which average by default.

    Args:
        module: any module; tensors that it shares stay shared.
        mesh: the mesh.
        plan: sharding specifications by the names of parameters and buffers, see `distribute`; each rank has a copy of
            the others.
        remote: whether it lives on the ranks.
        parallelize: runs on each rank, and takes the module and a `DeviceMesh` with the dimensions of *mesh*. It
            applies `parallelize_module`, `fully_shard` or the like, and returns None, or another module to call, such
            as `DistributedDataParallel(module, process_group=device_mesh.get_group("dp"))`.
        out_spec: how results are split, see `distribute`; ``[]`` if each rank has the whole. It must be given with
            *parallelize* and *compile*.
        compile: backend of `torch.compile` on the ranks; True for its default.

    Raises:
        KeyError: *module* has no parameter or buffer of a name, or the mesh no dimension of one in a specification.
        TypeError: arguments do not go together, or *module* cannot be sent.
        ValueError: a specification is too long, or names a dimension twice.
    """
    check_instance("module", module, nn.Module, "an nn.Module")
    check_instance("mesh", mesh, Mesh, "a Mesh, see monarch_hpc.distributed.Mesh")
    specs = dict(plan or {})
    named = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    extent = mesh.procs.region.extent
    shard_dims = {}
    for name, spec in specs.items():
        if name not in named:
            raise KeyError(f"plan names {name!r}; the module has: {', '.join(named) or 'nothing'}")
        shard_dims[name] = place_dims(spec, named[name].dim(), extent)  # before anything is sent
    inside = parallelize is not None or bool(compile)
    if not remote:
        if inside or out_spec is not None:
            raise TypeError(
                "parallelize=, compile= and out_spec= are for modules that live on the ranks: add remote=True"
            )
        return _placed(module, mesh, named, specs)
    if inside or out_spec is not None:
        if specs:
            raise TypeError("plan= with parallelize=, compile= or out_spec=: let parallelize shard the parameters")
        if out_spec is None:
            raise TypeError("parallelize= and compile= need out_spec=: how results are split, [] if each rank has all")
    if parallelize is not None:
        check_callable("parallelize", parallelize)
    out_dims = None if out_spec is None else place_dims(out_spec, _MAX_DIMS, extent)
    backend = "inductor" if compile is True else compile or ""
    return remote_module(module, mesh._view, shard_dims, out_dims, parallelize, backend)


def _placed(
    module: nn.Module, mesh: Mesh, named: Mapping[str, Any], specs: Mapping[str, ShardingSpec | None]
) -> nn.Module:
    """A copy whose parameters and buffers are on the mesh."""
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
