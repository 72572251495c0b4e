"""Pickling of torch tensors in CPU memory: not copied, with their aliases, and without elements that none of them sees.

Imported in processes that have imported torch, and only there.
"""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.wire.frames import Buffer
from monarch_hpc.wire.seen_memory import ArrivedMemory, SeenMemories

__all__ = ["REDUCERS"]


def _reduce_tensor(tensor: torch.Tensor, memories: SeenMemories) -> Any:
    if not _is_ordinary(tensor):
        return NotImplemented
    storage, item = tensor.untyped_storage(), tensor.element_size()
    offset = int(tensor.storage_offset()) * item
    last = offset
    if tensor.numel():
        last += item * (1 + sum((num - 1) * step for num, step in zip(tensor.shape, tensor.stride(), strict=True)))
    memory = memories.see((storage.data_ptr(), storage.nbytes()), lambda: _bytes_of(storage), offset, last)
    shape = tuple(tensor.shape), tensor.stride()
    return _rebuild, (memory, tensor.dtype, offset, *shape, tensor.requires_grad)


def _reduce_parameter(parameter: torch.nn.Parameter, memories: SeenMemories) -> Any:
    reduced = _reduce_tensor(parameter, memories)
    return reduced if reduced is NotImplemented else (_rebuild_parameter, reduced[1])


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether dtype, shape, strides and memory are all that there is to *tensor*."""
    return not (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_conj()
        or tensor.is_neg()
        or any(getattr(tensor, "names", ()))  # removed in torch 2.13
        or tensor.__dict__
        or tensor._backward_hooks
    )


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    return torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data


def _rebuild(
    arrived: ArrivedMemory,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    tensor = torch.empty(0, dtype=dtype)
    if shape and 0 in shape:
        offset = arrived.start
    tensor.set_(arrived.made(_storage_of), (offset - arrived.start) // tensor.element_size(), shape, strides)
    return tensor.requires_grad_(requires_grad)


def _rebuild_parameter(*parts: Any) -> torch.nn.Parameter:
    tensor = _rebuild(*parts)
    return torch.nn.Parameter(tensor.detach(), tensor.requires_grad)


def _storage_of(memory: Buffer) -> torch.UntypedStorage:
    view = memoryview(memory)
    if not view.nbytes:
        return torch.empty(0).untyped_storage()
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8).untyped_storage()


REDUCERS = {torch.Tensor: _reduce_tensor, torch.nn.Parameter: _reduce_parameter}
