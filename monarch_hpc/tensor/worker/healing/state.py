"""Describes the values of a rank, and rebuilds them on another one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.utils._python_dispatch import _disable_current_modes

from monarch_hpc.tensor.stream.holdings import PARTIAL, REPLICATED, Box, Held, HeldPart
from monarch_hpc.tensor.stream.records import MeshSpec
from monarch_hpc.tensor.worker.healing.journal import LOST
from monarch_hpc.tensor.worker.values import Failure, Values
from monarch_hpc.wire.tensors import seen_bytes

__all__ = ["blank_like", "describe_values", "digests", "memory_of", "part_of", "rebuild", "spoil_unkept", "window"]


def _dims(placements: Any) -> tuple[int, ...]:
    found = []
    for placement in placements:
        match placement:
            case Replicate():
                found.append(REPLICATED)
            case Shard(dim=dim) if type(placement) is Shard:
                found.append(dim)
            case _:
                found.append(PARTIAL)
    return tuple(found)


def _has_memory(local: torch.Tensor) -> bool:
    """Whether the elements of a rank's part lie in memory that another rank could take over."""
    if local.layout != torch.strided:
        return False
    try:
        seen_bytes(local)
    except ValueError:  # released by a function
        return False
    return True


def memory_of(tensor: Any) -> torch.Tensor:
    """The memory of a rank's part, as bytes."""
    storage = tensor._local_tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def spoil_unkept(values: Values) -> None:
    """Mark what no other rank could take over, and forget autograd's history; alike on all ranks of a mesh.

    Sums that are not added up are replaced by the sum, where it is known.
    """
    for number, value in list(values.items()):
        if number == 0 or type(value) is Failure:
            continue
        mesh = getattr(value, "_whole_on", None)
        if mesh is not None:
            value = values[number] = DTensor.from_local(value, mesh, (Replicate(),) * mesh.ndim, run_check=False)
        if isinstance(value, DTensor):
            settled = value.__dict__.get("_settled")
            if settled is not None and settled[0] == value._version:
                whole = (Replicate(),) * value.device_mesh.ndim
                value = values[number] = DTensor.from_local(settled[1], value.device_mesh, whole, run_check=False)
            kept = PARTIAL not in _dims(value.placements) and "_copied_at" not in value.__dict__
            if kept and _has_memory(value._local_tensor):
                if not value.is_leaf:
                    values[number] = _without_history(value)
                continue
        values[number] = Failure(LOST)
        values.num_failed += 1


def describe_values(values: Values, shardings: Mapping[int, Any]) -> Held:
    """Describe all values.

    Args:
        values: the values, after `spoil_unkept`.
        shardings: the sharded tensors of meshes, by number.
    """
    meshes = {id(sharding.held[0]): number for number, sharding in shardings.items()}
    random = {number: sharding.ops.draws for number, sharding in shardings.items()}
    specs: dict[int, MeshSpec] = {number: sharding.held[1] for number, sharding in shardings.items()}
    places: dict[int, int] = {}
    sizes: list[int] = []
    pieces: dict[int, HeldPart] = {}
    failed: dict[int, int] = {}
    for number, value in values.items():
        if type(value) is Failure:
            failed[number] = value.root
        elif isinstance(value, DTensor):
            local = value._local_tensor
            storage = local.untyped_storage()
            key = int(storage._cdata)
            if key not in places:
                places[key] = len(places)
                sizes.append(storage.nbytes())
            pieces[number] = HeldPart(
                places[key],
                int(local.storage_offset()),
                tuple(local.shape),
                tuple(local.stride()),
                local.dtype,
                meshes[id(value.device_mesh)],
                _dims(value.placements),
                (tuple(value.shape), tuple(value.stride())),
                value.is_leaf and value.requires_grad,
                value._version > 0,
                not value.is_leaf,
            )
    return Held(pieces, failed, tuple(sizes), random, specs)


def part_of(tensor: Any, box: Box) -> torch.Tensor:
    """A part of what a rank has of a value."""
    found: torch.Tensor = tensor[tuple(slice(begin, end) for begin, end in box)]
    return found


def window(piece: HeldPart, memory: torch.Tensor) -> torch.Tensor:
    """The part of a value that *piece* describes, in *memory*."""
    empty = torch.empty(0, dtype=piece.dtype, device=memory.device)
    return empty.set_(memory.untyped_storage(), piece.offset, piece.shape, piece.stride)


def rebuild(piece: HeldPart, memory: torch.Tensor, device_mesh: Any) -> DTensor:
    """The value that *piece* describes, in *memory*."""
    local = window(piece, memory)
    placements = tuple(Replicate() if dim == REPLICATED else Shard(dim) for dim in piece.dims)
    shape, stride = piece.whole
    with torch.no_grad():
        made: DTensor = DTensor.from_local(
            local, device_mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )
    if piece.leaf:
        made.requires_grad_()
    return _without_history(made) if piece.inner else made


class _HistoryDropped(torch.autograd.Function):
    """The same value, of which no gradient comes any further: one that is left out would be wrong in silence."""

    @staticmethod
    def forward(_ctx: Any, value: torch.Tensor) -> torch.Tensor:
        """Share its memory."""
        return value.detach()

    @staticmethod
    def backward(_ctx: Any, _gradient: torch.Tensor) -> torch.Tensor:
        """Refuse."""
        raise RuntimeError("backward() has come to a tensor whose history a heal has dropped: compute it again")


def _without_history(value: Any) -> Any:
    if not (value.is_floating_point() or value.is_complex()):
        return value.detach()
    with torch.enable_grad():
        return _HistoryDropped.apply(value.detach().requires_grad_())  # type: ignore[no-untyped-call]  # torch's own


def blank_like(piece: HeldPart, ops: Any) -> DTensor:
    """A value of zeros on this rank, sharded as *piece* is on another one, whose part may have another size.

    Args:
        piece: the value.
        ops: how operators run on its mesh.
    """
    placements = tuple(Replicate() if dim == REPLICATED else Shard(dim) for dim in piece.dims)
    shape, stride = piece.whole
    with torch.no_grad(), _disable_current_modes():
        whole = torch.zeros((), dtype=piece.dtype, device=ops.device).expand(shape)
        part = ops.wrap(whole).redistribute(placements=placements)._local_tensor.contiguous().clone()
        made: DTensor = DTensor.from_local(
            part, ops.mesh, placements, run_check=False, shape=torch.Size(shape), stride=stride
        )
    if piece.leaf:
        made.requires_grad_()
    return made


def digests(values: Values) -> dict[int, bytes]:
    """Digests of this rank's parts of all values, by number."""
    found = {}
    for number, value in values.items():
        if isinstance(value, DTensor):
            own = value._local_tensor.detach().contiguous().cpu()
            flat = own.reshape(-1).view(torch.uint8) if own.numel() else torch.empty(0, dtype=torch.uint8)
            found[number] = hashlib.blake2b(flat.numpy().data, digest_size=8).digest()
    return found
