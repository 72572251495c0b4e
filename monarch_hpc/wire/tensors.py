"""Pickling of torch tensors in CPU memory: not copied, with their aliases, and without elements that none of them sees.

Imported in processes that have imported torch, and only there.
"""

from __future__ import annotations

from typing import Any

import torch

from monarch_hpc.wire.frames import Buffer
from monarch_hpc.wire.seen_memory import ArrivedMemory, SeenMemories, SeenMemory

__all__ = ["reducers", "seen_bytes"]


def seen_bytes(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that a strided tensor sees: the first, and the one behind the last.

    Raises:
        ValueError: its memory was released, so that torch would read what lies there now, or crash.
    """
    item, size = tensor.element_size(), tensor.untyped_storage().nbytes()
    first = last = int(tensor.storage_offset()) * item
    if tensor.numel():
        last += item * (1 + sum((num - 1) * step for num, step in zip(tensor.shape, tensor.stride(), strict=True)))
    if last > size:
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} needs {last} bytes of its storage, which was resized to {size}; "
            "send it before its memory is released"
        )
    return first, last


def _reduce_tensor(tensor: torch.Tensor, memories: SeenMemories) -> Any:
    if tensor._backward_hooks or tensor.is_nested:
        return NotImplemented
    if _is_ordinary(tensor):
        reduced: Any = _rebuild, _parts(tensor, memories)
    # To one that is nearer to an ordinary one.
    elif tensor.requires_grad:  # which torch forgets of sparse ones
        reduced = torch.Tensor.requires_grad_, (tensor.detach(),)
    elif tensor.is_conj():
        reduced = torch.Tensor.conj, (tensor.conj(),)
    elif tensor.is_neg():
        reduced = _negative, (_negative(tensor),)
    else:
        return NotImplemented
    return _with_attributes(tensor, reduced)


def _reduce_parameter(parameter: torch.nn.Parameter, memories: SeenMemories) -> Any:
    if parameter._backward_hooks or not _is_ordinary(parameter):
        return NotImplemented  # torch gives the tensor in it to pickle
    return _with_attributes(parameter, (_rebuild_parameter, _parts(parameter, memories)))


def _parts(tensor: torch.Tensor, memories: SeenMemories) -> tuple[Any, ...]:
    """The arguments of `_rebuild`."""
    offset, last = seen_bytes(tensor)
    memory = _see(tensor.untyped_storage(), memories, offset, last)
    return memory, tensor.dtype, offset, tuple(tensor.shape), tensor.stride(), tensor.requires_grad


def _with_attributes(tensor: torch.Tensor, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """Add the attributes, which are set on what was rebuilt, so that they may hold the tensor itself."""
    return (*reduced, tensor.__dict__, None, None, _set_attributes) if tensor.__dict__ else reduced


def _reduce_storage(storage: torch.UntypedStorage, memories: SeenMemories) -> Any:
    if storage.device.type != "cpu":
        return NotImplemented
    return _rebuild_storage, (_see(storage, memories, 0, storage.nbytes()),)


def _reduce_typed_storage(storage: torch.TypedStorage, _memories: SeenMemories) -> Any:
    """Reduce what torch gives to pickle for a tensor that is left to it, and would copy twice."""
    if storage._untyped_storage.device.type != "cpu":
        return NotImplemented
    return _rebuild_typed_storage, (storage._untyped_storage, storage.dtype)


def _see(storage: torch.UntypedStorage, memories: SeenMemories, first: int, last: int) -> SeenMemory:
    return memories.see((storage.data_ptr(), storage.nbytes()), lambda: _bytes_of(storage), first, last)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether dtype, shape, strides and memory are all that there is to the elements of *tensor*."""
    return not (
        tensor.device.type != "cpu"
        or tensor.layout is not torch.strided
        or tensor.is_quantized
        or tensor.is_nested
        or tensor.is_conj()
        or tensor.is_neg()
        or any(getattr(tensor, "names", ()))  # removed in torch 2.13
    )


def _empty(dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this process, also where a mesh is active."""
    with torch._C.DisableTorchFunction():
        return torch.empty(0, dtype=dtype)


def _bytes_of(storage: torch.UntypedStorage) -> memoryview:
    return _empty(torch.uint8).set_(storage).numpy().data


def _rebuild(
    arrived: ArrivedMemory,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: bool,
) -> torch.Tensor:
    with torch._C.DisableTorchFunction():  # of the mode of a mesh that is active
        tensor = torch.empty(0, dtype=dtype)
        if shape and 0 in shape:
            offset = arrived.start
        tensor.set_(arrived.made(_storage_of), (offset - arrived.start) // tensor.element_size(), shape, strides)
        return tensor.requires_grad_(requires_grad)


def _rebuild_parameter(*parts: Any) -> torch.nn.Parameter:
    tensor = _rebuild(*parts)
    return torch.nn.Parameter(tensor.detach(), tensor.requires_grad)


def _set_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    tensor.__dict__.update(attributes)


def _negative(tensor: torch.Tensor) -> torch.Tensor:
    negative: torch.Tensor = torch._neg_view(tensor)
    return negative


def _rebuild_storage(arrived: ArrivedMemory) -> torch.UntypedStorage:
    storage: torch.UntypedStorage = arrived.made(_storage_of)
    return storage


def _rebuild_typed_storage(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.TypedStorage:
    return torch.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _storage_of(memory: Buffer) -> torch.UntypedStorage:
    view = memoryview(memory)
    if not view.nbytes:
        return _empty(torch.uint8).untyped_storage()
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8).untyped_storage()


def reducers() -> dict[type, Any]:
    """Reducers by exact type."""
    return {
        torch.Tensor: _reduce_tensor,
        torch.nn.Parameter: _reduce_parameter,
        torch.UntypedStorage: _reduce_storage,
        torch.TypedStorage: _reduce_typed_storage,
    }
