"""Placements, conversions and reads of sharded tensors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.local_future import completed
from monarch_hpc.core.errors import DeviceMeshError
from monarch_hpc.core.shape import contiguous_strides
from monarch_hpc.tensor.operations import MeshOperations
from monarch_hpc.tensor.ops.meta import Meta
from monarch_hpc.tensor.ops.proxy import MeshTensor
from monarch_hpc.tensor.reading import read_values, reread
from monarch_hpc.tensor.sharded.calls import call_by_name, derived
from monarch_hpc.tensor.sharded.spec import ShardingSpec, even_shard_shape, place_dims
from monarch_hpc.tensor.stream.engine import View
from monarch_hpc.tensor.stream.records import Ref

__all__ = ["ShardedOperations"]


class ShardedOperations(MeshOperations):
    """The operations of the sharded tensors of one engine; arguments as of `MeshOperations`."""

    # ---- placement ----

    def placements(self, tensor: MeshTensor) -> tuple[Any, ...]:
        """Ask the ranks how a tensor is placed; see `MeshTensor.placements`."""
        view: View = tensor._h.view
        number = call_by_name(view, "placements", [Ref(tensor._h.number)], [tensor._h.number], -2)
        found: tuple[Any, ...] = self._read(view, number, {}, lambda value: value).get()
        return found

    def redistribute(self, tensor: MeshTensor, spec: ShardingSpec | None) -> MeshTensor:
        """Issue a change of placement; see `MeshTensor.redistribute`."""
        view: View = tensor._h.view
        dims = place_dims(spec, tensor.dim(), view.region.extent)
        number = call_by_name(view, "redistribute", [Ref(tensor._h.number), dims], [tensor._h.number])
        return derived(number, view, tensor, tensor._m)

    def to_local(self, tensor: MeshTensor, spec: ShardingSpec | None) -> MeshTensor:
        """Issue a conversion; see `MeshTensor.to_local`."""
        view: View = tensor._h.view
        dims = place_dims(spec, tensor.dim(), view.region.extent)
        shape = even_shard_shape(tensor.shape, dims, view.region.extent)
        number = call_by_name(view, "local", [Ref(tensor._h.number), dims], [tensor._h.number])
        meta = Meta.make(shape, contiguous_strides(shape), tensor.dtype, tensor.device, tensor._m.grads, True)
        return derived(number, self.view_at(view.region), tensor, meta, sharded=view)

    # ---- reads ----

    def full_tensor(self, tensor: MeshTensor) -> torch.Tensor:
        """Gather a value; see `MeshTensor.full_tensor`."""
        found: torch.Tensor = self._whole(tensor, lambda value: value).get()
        return found

    def shard(self, tensor: MeshTensor, place: dict[str, int]) -> torch.Tensor:
        """Read a shard; see `MeshTensor.shard`."""
        view: View = tensor._h.view
        view.region.extent.check_known(place)
        at = view.region.slice(**{**dict.fromkeys(view.region.extent, 0), **place})  # checks the coordinates
        assert len(at) == 1
        number = call_by_name(view, "shard", [Ref(tensor._h.number)], [tensor._h.number], at_once=False)
        found: torch.Tensor = self._read(view, number, place, lambda value: value).get()
        return found

    def item_async(self, tensor: MeshTensor) -> Future[Any]:
        """Read the only element; see `MeshTensor.item_async`."""
        if tensor.numel() != 1:
            raise RuntimeError(f"item() of a tensor of shape {tuple(tensor.shape)}: it is for one element")
        return self._whole(tensor, lambda value: value.item())

    def _whole(self, tensor: MeshTensor, finish: Callable[[Any], Any]) -> Future[Any]:
        view: View = tensor._h.view
        recovery, source = view.engine.recovery, tensor._h.number
        expected, only_read = (0, False) if recovery is None else (recovery.expected, recovery.only_read)
        try:
            number = call_by_name(view, "whole", [Ref(source)], [source], at_once=False)
            if recovery is not None:
                recovery.note_harmless()
            return self._read(view, number, {}, finish, source)
        except DeviceMeshError:
            found = reread(view, source, expected, only_read=only_read)
            if found is None:
                raise
            return completed(finish(found))

    def _read(
        self, view: View, number: int, place: dict[str, int], finish: Callable[[Any], Any], source: int = 0
    ) -> Future[Any]:
        place = {**dict.fromkeys(view.region.extent, 0), **place}
        future = read_values(view, place, [number], lambda v: finish(v[0]), source)
        if view.engine.log is None:
            view.dead.append(number)
        else:  # not before it is read: maybe again, from a mesh that was healed meanwhile
            weakref.finalize(future, view.dead.append, number)
        return future

    # ---- what differs from tensors with a value for each rank ----

    def to_global(self, tensor: MeshTensor, spec: ShardingSpec | None) -> NoReturn:
        """Refuse: it is global."""
        raise TypeError("to_global of a sharded tensor: it is for tensors with a value for each rank; use redistribute")

    def reduce(
        self, tensor: MeshTensor, dims: Any, reduction: str, scatter: bool, out: MeshTensor | None, inplace: bool
    ) -> NoReturn:
        """Refuse: a sharded tensor has one value."""
        raise TypeError("reduce of a sharded tensor: it has one value, so use sum(), mean(), ...; or to_local() first")

    def slice_mesh(self, tensor: MeshTensor, selection: dict[str, int | slice]) -> NoReturn:
        """Refuse: the ranks have different parts."""
        raise TypeError("slice_mesh of a sharded tensor: its ranks have different parts; use to_local() first")

    def to_mesh(self, tensor: MeshTensor, mesh: Any, stream: Any) -> NoReturn:
        """Refuse: the ranks have different parts."""
        raise TypeError("to_mesh of a sharded tensor: distribute(t.full_tensor(), mesh, spec), or to_local() first")

    def set_data(self, tensor: MeshTensor, value: MeshTensor) -> None:
        """Refuse: DTensor keeps the shard it has."""
        raise TypeError("t.data = value of a sharded tensor: write 'with torch.no_grad(): t.copy_(value)'")

    def lend(self, tensor: MeshTensor) -> tuple[Any, ...]:
        """Issue a copy of each rank's shard for an actor there; return how it is rebuilt."""
        view: View = tensor._h.view
        number = call_by_name(view, "shard", [Ref(tensor._h.number)], [tensor._h.number])
        lent = self._lend(view, number)
        view.dead.append(number)
        return lent
