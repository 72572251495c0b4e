"""torch tensors in trees. Imported where a tree has one, and only there."""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.rdma.tensors import check_plain
from monarch_hpc.rdma.trees.boxes import Box
from monarch_hpc.rdma.trees.leaf import Leaf
from monarch_hpc.rdma.trees.strides import Strides

__all__ = ["LIBRARY", "device_bytes"]

_PARAMETER = "parameter"
_GRADIENT = "gradient"


class _Tensors:
    """torch; see `rdma.trees.leaf.ArrayLibrary`."""

    types: frozenset[type] = frozenset((torch.Tensor, torch.nn.Parameter))

    def look(self, what: str, data: torch.Tensor, box: Box | None, whole: tuple[int, ...]) -> Leaf:
        """See `ArrayLibrary.look`."""
        forms = [_PARAMETER] if isinstance(data, torch.nn.Parameter) else []
        forms += [_GRADIENT] if data.requires_grad else []
        local = data.detach()
        if hasattr(local, "__create_chunk_list__"):
            local, box, whole = _local_part(what, local)
        check_plain(what, local)
        shape, item = tuple(local.shape), local.element_size()
        strides = Strides(local.data_ptr(), shape, tuple(item * step for step in local.stride()), item)
        storage = local.untyped_storage()
        allocation = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        span = strides.span
        if span[1] > max(allocation[1], strides.first):
            raise ValueError(
                f"{what} has more elements than its storage, which was resized to {storage.nbytes()} bytes"
            )
        own = Box((0,) * len(shape), shape)
        return Leaf(
            "torch",
            str(local.dtype).removeprefix("torch."),
            str(local.device),
            strides,
            span,
            allocation,
            True,
            " ".join(forms),
            box or own,
            whole or shape,
            local,
        )

    def look_again(self, what: str, data: torch.Tensor, _signature: tuple[Any, ...]) -> Leaf:
        """See `ArrayLibrary.look_again`."""
        return self.look(what, data, None, ())

    def signature(self, data: torch.Tensor) -> tuple[Any, ...] | None:
        """See `ArrayLibrary.signature`."""
        kind = type(data)
        if kind is not torch.Tensor and kind is not torch.nn.Parameter:  # such as a DTensor, or one without memory
            return None
        if data.layout is not torch.strided or data.is_nested or data.is_conj() or data.is_neg():
            return None
        form = kind, data.dtype, data.device, data.requires_grad
        return form, data.data_ptr(), data.shape, data.stride(), data.untyped_storage().nbytes()

    def glance(self, data: torch.Tensor) -> object:
        """See `ArrayLibrary.glance`; a storage that is resized is another memory."""
        return data.data_ptr(), data.shape, data.stride(), data.dtype, data.device, data.requires_grad

    def item_bytes(self, dtype: str) -> int:
        """See `ArrayLibrary.item_bytes`."""
        return _dtype(dtype).itemsize

    def is_floating(self, dtype: str) -> bool:
        """See `ArrayLibrary.is_floating`."""
        return _dtype(dtype).is_floating_point

    def memory(self, num_bytes: int, device: str) -> Any:
        """See `ArrayLibrary.memory`."""
        return torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def make(self, memory: Any, dtype: str, strides: Strides, form: str) -> torch.Tensor:
        """See `ArrayLibrary.make`."""
        flat = memory if isinstance(memory, torch.Tensor) else torch.frombuffer(memory, dtype=torch.uint8)
        tensor = torch.empty(0, dtype=_dtype(dtype), device=flat.device)
        item = strides.item_bytes
        first = (flat.data_ptr() - flat.untyped_storage().data_ptr() + strides.first) // item
        tensor.set_(flat.untyped_storage(), first, strides.shape, tuple(step // item for step in strides.steps))
        if _PARAMETER in form:
            return torch.nn.Parameter(tensor, _GRADIENT in form)
        return tensor.requires_grad_(_GRADIENT in form)

    def copy(self, target: Any, source: Any) -> None:
        """See `ArrayLibrary.copy`."""
        with torch.no_grad():
            target.detach().copy_(source)
        if target.device.type != "cpu":
            torch.accelerator.current_stream(target.device).synchronize()


LIBRARY = _Tensors()
"""torch."""


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch has no elements of {name}")
    return dtype


def _local_part(what: str, tensor: Any) -> tuple[torch.Tensor, Box, tuple[int, ...]]:
    """The elements of a DTensor that are here, and where they belong."""
    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"{what} is a DTensor whose sum is not finished (Partial): redistribute() it first")
    chunks = tensor.__create_chunk_list__()
    if len(chunks) != 1:
        raise TypeError(f"{what} is a DTensor of {len(chunks)} pieces in this process: redistribute() it first")
    local: torch.Tensor = tensor.to_local()
    return local, Box(tuple(chunks[0].offsets), tuple(local.shape)), tuple(tensor.shape)


def device_bytes(tensor: torch.Tensor, address: int, num_bytes: int) -> torch.Tensor:
    """The bytes at *address* in the storage of *tensor*, which they hold."""
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(storage, address - storage.data_ptr(), (num_bytes,), (1,))
