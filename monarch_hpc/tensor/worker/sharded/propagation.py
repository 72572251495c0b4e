"""Keeps what DTensor has worked out for operators on the tensors of a mesh, for ranks that join later.

To work out how one call is sharded takes DTensor milliseconds, in which all other ranks wait for a replacement in its
first step. All that this package uses of DTensor's private names about that is here.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, debug
from torch.distributed.tensor._dtensor_spec import DTensorSpec
from torch.distributed.tensor._op_schema import OpSchema, OutputSharding
from torch.distributed.tensor._ops._math_ops import _NormPartial
from torch.distributed.tensor._redistribute import _gen_transform_infos, clear_redistribute_planner_cache

from monarch_hpc.tensor.worker.sharded.device_mesh import RankMesh

__all__ = ["forget_propagated", "pack_propagated", "remember_propagated", "take_propagated"]

_MAX_KEPT = 4096
"""Calls kept for a mesh: a training has some hundreds, but shapes that change all the time must not fill the memory."""

_debug: Any = debug  # declares no types
_PLAIN = frozenset(
    {bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size}
)
_PLACEMENTS = frozenset({Replicate, Shard, Partial, _NormPartial})
_aten = torch.ops.aten
_SCALED = frozenset({_aten.mul.Tensor, _aten.mul_.Tensor, _aten.div.Tensor, _aten.div_.Tensor})
"""Operators that are sharded alike by whatever number they scale, which an optimizer changes in each step."""


@cache
def remember_propagated() -> None:
    """Have DTensor keep what it works out, and use what was taken over; in this process, from here on."""
    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    work_out: Callable[[OpSchema], OutputSharding] = propagator.propagate_op_sharding_non_cached
    rules = propagator.op_strategy_funcs, propagator.op_single_dim_strategy_funcs

    def propagate(schema: OpSchema) -> OutputSharding:
        if not any(schema.op in known for known in rules):  # what tells its calls apart is found out with the first one
            return work_out(schema)
        mesh = _mesh_of(schema.args_schema, schema.kwargs_schema)
        if mesh is None:
            return work_out(schema)
        kept: dict[OpSchema, OutputSharding] = mesh.propagated
        key = _key(schema)
        found = kept.get(key)
        if found is None:
            found = work_out(schema)
            if _is_alike_on_all_ranks(schema, found, mesh):
                if len(kept) >= _MAX_KEPT:
                    del kept[next(iter(kept))]
                kept[key] = found
        return found

    propagator.propagate_op_sharding_non_cached = propagate


def pack_propagated(mesh: RankMesh) -> bytes:
    """All that is kept for a mesh."""
    packed = io.BytesIO()
    _Pickler(packed, mesh).dump(list(mesh.propagated.items()))
    return packed.getvalue()


def take_propagated(mesh: RankMesh, packed: bytes, *, was_other: bool = False) -> None:
    """Take over what a rank of the same mesh has packed, or of one that was smaller or larger (*was_other*).

    Of another mesh, DTensor might choose other placements, but these are as right. So all ranks take over the same, and
    have forgotten before what they had themselves.
    """
    found: list[tuple[OpSchema, OutputSharding]] = _Unpickler(io.BytesIO(packed), mesh).load()
    mesh.propagated.update((schema, sharding) for schema, sharding in found if not was_other or _fits(schema, sharding))


def forget_propagated(mesh: RankMesh) -> None:
    """Forget what is kept for a mesh, and all that DTensor keeps on this thread."""
    mesh.propagated.clear()
    _debug._clear_sharding_prop_cache()
    clear_redistribute_planner_cache()
    _gen_transform_infos.cache_clear()


# ---- which calls are kept ----


def _key(schema: OpSchema) -> OpSchema:
    """What tells a call from others that are sharded in another way."""
    tensor, *others = schema.args_schema
    if schema.op not in _SCALED or type(others[0]) is not float or not isinstance(tensor, DTensorSpec):
        return schema
    if any(isinstance(one, Partial) for one in tensor.placements):
        return schema
    return OpSchema(schema.op, (tensor, 1.0), schema.kwargs_schema, schema.schema_info)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if type(value) in (tuple, list):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def _mesh_of(*values: Any) -> RankMesh | None:
    """The mesh that is the only one in *values*; None if there is none, or another thing that may not be kept."""
    mesh: Any = None
    for leaf in _leaves(values):
        if type(leaf) is DTensorSpec:
            mesh = leaf.mesh if mesh is None else mesh
            if leaf.mesh is not mesh or not _is_plain_spec(leaf):
                return None
        elif type(leaf) not in _PLAIN:
            return None
    return mesh if isinstance(mesh, RankMesh) else None


def _is_plain_spec(spec: DTensorSpec) -> bool:
    """Whether it keeps nothing of a certain call, as the masks of embeddings do, nor sizes that are symbols."""
    meta = spec.tensor_meta
    sizes = () if meta is None else (*meta.shape, *meta.stride)
    return all(type(one) in _PLACEMENTS for one in spec.placements) and all(type(size) is int for size in sizes)


def _is_alike_on_all_ranks(schema: OpSchema, found: OutputSharding, mesh: RankMesh) -> bool:
    again = found.redistribute_schema
    parts = (found.output_spec, () if again is None else (again.args_schema, again.kwargs_schema))
    if any(isinstance(leaf, DTensorSpec) for leaf in _leaves(parts)) and _mesh_of(*parts) is not mesh:
        return False
    # Arguments that are sizes of this rank's shards.
    return not found.use_val_from_redistribute_schema or all(
        _is_even(leaf) for leaf in _leaves((schema.args_schema, parts)) if isinstance(leaf, DTensorSpec)
    )


def _fits(schema: OpSchema, found: OutputSharding) -> bool:
    """Whether what was worked out on another mesh is right on that of the specs: no rank is without elements."""
    again = found.redistribute_schema
    parts = (schema.args_schema, schema.kwargs_schema, found.output_spec, () if again is None else again.args_schema)
    specs = [leaf for leaf in _leaves(parts) if isinstance(leaf, DTensorSpec)]
    return not found.use_val_from_redistribute_schema and all(_is_large(spec) for spec in specs)


def _is_large(spec: DTensorSpec) -> bool:
    if spec.tensor_meta is None:
        return False
    sizes = list(spec.tensor_meta.shape)
    for num, placement in zip(spec.mesh.shape, spec.placements, strict=True):
        if isinstance(placement, Shard):
            if sizes[placement.dim] < num:
                return False
            sizes[placement.dim] //= num
    return True


def _is_even(spec: DTensorSpec) -> bool:
    if spec.tensor_meta is None:
        return False
    sizes = list(spec.tensor_meta.shape)
    for num, placement in zip(spec.mesh.shape, spec.placements, strict=True):
        if isinstance(placement, Shard):
            if sizes[placement.dim] % num:
                return False
            sizes[placement.dim] //= num
    return True


# ---- how they travel ----


class _Pickler(pickle.Pickler):
    def __init__(self, into: io.BytesIO, mesh: RankMesh) -> None:
        super().__init__(into, pickle.HIGHEST_PROTOCOL)
        self._mesh = mesh

    def persistent_id(self, value: Any) -> str | None:
        """The mesh, and names of operators."""
        if value is self._mesh:
            return ""
        return str(value) if isinstance(value, torch._ops.OpOverload) else None

    def reducer_override(self, value: Any) -> Any:
        """Without hashes, which differ between processes."""
        match value:
            case DTensorSpec():
                strided = value.use_strided_shard_as_shard_order
                order = None if strided else value.shard_order
                return DTensorSpec, (value.mesh, value.placements, value.tensor_meta, order, strided)
            case OpSchema():
                return OpSchema, (value.op, value.args_schema, value.kwargs_schema, value.schema_info)
            case _NormPartial():  # its state is lost in torch's own way
                return _NormPartial, (value.norm_type,)
            case OutputSharding():
                redistributes = value.redistribute_schema, value.needs_redistribute
                return OutputSharding, (value.output_spec, *redistributes, value.use_val_from_redistribute_schema)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, packed: io.BytesIO, mesh: RankMesh) -> None:
        super().__init__(packed)
        self._mesh = mesh

    def persistent_load(self, name: str) -> Any:
        """See `_Pickler.persistent_id`."""
        if not name:
            return self._mesh
        found: Any = torch.ops
        for part in name.split("."):
            found = getattr(found, part)
        return found
