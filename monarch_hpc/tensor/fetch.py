"""Reads values of mesh tensors: of one rank, as tensors of the program."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import tree_flatten, tree_unflatten

from monarch_hpc.actor.future import Future
from monarch_hpc.mesh.value import ValueMesh
from monarch_hpc.tensor.ops.encode import foreign
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.reading import answer_of, check_readable, read_values
from monarch_hpc.tensor.stream.copies import rebuild
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.holdings import Reply
from monarch_hpc.tensor.stream.sites import site_here
from monarch_hpc.tensor.streams.loans import check_use

__all__ = ["fetch_shard", "inspect", "read_on_all", "show"]


def read_on_all(view: View, number: int) -> Future[Any]:
    """The future of a value's copies from all ranks, as a mesh of values."""

    def finish(replies: list[Reply]) -> ValueMesh[Any]:
        from_rank = [rebuild(answer_of(view, reply, site=site)[0]) for reply in replies]
        whole = type(view.region).whole(view.region.extent)
        return ValueMesh(whole, from_rank)

    site = site_here(1)
    check_readable(view)
    view.engine.flush()
    future: Future[Any] = view.workers.read.fold(finish, (number,))
    return future


def fetch_shard(obj: Any, shard: dict[str, int] | None = None, **coords: int) -> Future[Any]:
    """The future of a copy of *obj*, with the value of one rank in place of each mesh tensor.

    Args:
        obj: a mesh tensor, or lists, tuples and dicts with some, all on the same ranks.
        shard: coordinates of the rank; 0 along dimensions that are not named.
        **coords: likewise.

    Raises:
        IndexError: a coordinate is outside its dimension.
        KeyError: the mesh has no dimension of that name.
        TypeError: a tensor is sharded.
        ValueError: *obj* has no mesh tensor, or has some on different ranks.
    """
    leaves, tree = tree_flatten(obj)
    tensors: list[MeshTensor] = [leaf for leaf in leaves if leaf.__class__ is MeshTensor]
    if not tensors:
        raise ValueError(f"there is no mesh tensor in this {type(obj).__name__}: its values are here already")
    view: View = tensors[0]._h.view
    for tensor in tensors:
        if tensor._h.view is not view:
            raise foreign(tensor, view)
        check_use(tensor)
    if view.mesh:
        raise TypeError("the value of one rank, of a sharded tensor: use t.full_tensor(), or t.shard(...)")
    view.region.extent.check_known({**(shard or {}), **coords})
    place = {**dict.fromkeys(view.region.extent, 0), **(shard or {}), **coords}

    def finish(found: list[Any]) -> Any:
        values = iter(found)
        return tree_unflatten([next(values) if leaf.__class__ is MeshTensor else leaf for leaf in leaves], tree)

    return read_values(view, place, [tensor._h.number for tensor in tensors], finish)


def inspect(obj: Any, shard: dict[str, int] | None = None, **coords: int) -> Any:
    """Wait for `fetch_shard` and return its value."""
    return fetch_shard(obj, shard, **coords).result()


def show(obj: Any, shard: dict[str, int] | None = None, **coords: int) -> None:
    """Print what `inspect` returns, with its coordinates."""
    place = ", ".join(f"{name}={at}" for name, at in {**(shard or {}), **coords}.items())
    print(f"rank {place or 'at 0'}:\n{inspect(obj, shard, **coords)}")
