"""A DeviceMesh of the ranks of one mesh, without torch's default process group, which belongs to the user.

All that this package uses of torch's private names about process groups is here.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from monarch_hpc.tensor.stream.records import MeshSpec

__all__ = ["RankMesh", "bare_device_mesh", "make_device_mesh", "replace_groups"]

_c10d: Any = torch._C._distributed_c10d
_QUIET = ("torch.distributed.tensor._redistribute", "torch.distributed.tensor._collective_utils")


class RankMesh(DeviceMesh):
    """A DeviceMesh whose ranks are those of a mesh of procs.

    Attributes:
        propagated: what DTensor has worked out for operators, see `propagation`.
        specs: what describes tensors of this mesh, see `wrapping`.
        settlings: how gradients are summed, see `settling`.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.propagated: dict[Any, Any] = {}
        self.specs: dict[Any, Any] = {}
        self.settlings: dict[Any, Any] = {}

    def get_rank(self) -> int:
        """This rank."""
        return self._rank

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        """The coordinate of this rank along a dimension."""
        names = self.mesh_dim_names or ()
        place = names.index(mesh_dim) if isinstance(mesh_dim, str) else mesh_dim or 0
        coordinate = self.get_coordinate()
        assert coordinate is not None
        return coordinate[place]


def make_device_mesh(spec: MeshSpec, rank: int, group_of: Callable[[tuple[int, ...]], Any]) -> RankMesh:
    """The DeviceMesh in which *rank* takes part.

    Args:
        spec: the mesh.
        rank: this one.
        group_of: the process group of some ranks, in order.
    """
    mesh = bare_device_mesh(spec, rank)
    for members in _lines(mesh):
        group = _process_group(members, rank, _group_name(spec.key, members), group_of)
        _add_group(mesh, group.group_name, group)
    return mesh


def bare_device_mesh(spec: MeshSpec, rank: int) -> RankMesh:
    """The DeviceMesh without process groups."""
    for name in _QUIET:  # they advise those who write SPMD programs
        logging.getLogger(name).setLevel(logging.ERROR)
    ranks = torch.tensor(spec.ranks).reshape(spec.sizes)
    mesh = RankMesh(spec.device, ranks, mesh_dim_names=spec.names, _init_backend=False, _rank=rank)
    mesh._dim_group_names = []
    return mesh


def _add_group(mesh: RankMesh, name: Any, group: Any) -> None:
    mesh._pg_registry[name] = group
    if len(mesh._dim_group_names) < mesh.ndim:
        mesh._dim_group_names.append(name)


def replace_groups(mesh: RankMesh, spec: MeshSpec, group_of: Callable[[tuple[int, ...]], Any]) -> None:
    """Give a mesh new process groups of the same names; arguments as of `make_device_mesh`."""
    for members in _lines(mesh):
        name = _group_name(spec.key, members)
        group = group_of(members)
        kept = _replaced.get(name)
        if kept is group:  # another mesh of the same ranks has replaced it
            _add_group(mesh, name, _c10d._resolve_process_group(name))
            continue
        with contextlib.suppress(RuntimeError):  # it was not made before the mesh broke
            _c10d._unregister_process_group(name)
        _add_group(mesh, name, _process_group(members, mesh.get_rank(), name, group_of))
        _replaced[name] = group


_replaced: dict[str, Any] = {}
"""The groups that have replaced others, by name."""


def _lines(mesh: RankMesh) -> list[tuple[int, ...]]:
    """For each dimension, the ranks along it of which this is one."""
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    ranks = mesh.mesh
    return [
        tuple(ranks[tuple(slice(None) if at == place else own for at, own in enumerate(coordinate))].tolist())
        for place in range(ranks.ndim)
    ]


def _group_name(key: int, members: tuple[int, ...]) -> str:
    return f"{key}-{'-'.join(map(str, members))}"


def _process_group(members: tuple[int, ...], rank: int, name: str, group_of: Callable[[tuple[int, ...]], Any]) -> Any:
    try:
        return _c10d._resolve_process_group(name)
    except RuntimeError:  # not made yet
        pass
    group = group_of(members).again()
    group._set_group_name(name)
    group._set_group_desc(name)
    _c10d._register_process_group(name, group)
    return group
