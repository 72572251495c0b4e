"""Memory of torch tensors on CPUs and GPUs. Imported in processes that have imported torch, and only there."""

from __future__ import annotations

import torch

from monarch_hpc.rdma.local import Local

__all__ = ["check_plain", "check_type", "empty_tensor", "lay_over", "look_at_tensor", "wait_for_stream"]


def check_plain(what: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor whose elements are not all that there is to it.

    Raises:
        TypeError: it is sparse, quantized, nested, conjugated or has no memory; *what* names it.
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError(
            f"{what} is a sparse, quantized or nested tensor: pass its dense form, such as to_dense() of it"
        )
    if tensor.device.type == "meta":
        raise TypeError(f"{what} is a tensor without memory, on device 'meta': make it with empty_like(device=...)")
    if tensor.is_conj() or tensor.is_neg():
        raise TypeError(f"{what} is a tensor whose elements are conjugated or negated when read: pass clone() of it")


def look_at_tensor(what: str, tensor: torch.Tensor) -> Local:
    """Describe the memory of *tensor*; see `rdma.local.look_at`.

    Raises:
        TypeError: see `check_plain`.
        ValueError: it is not contiguous.
    """
    check_plain(what, tensor)
    if not tensor.is_contiguous():
        raise ValueError(f"{what} is not contiguous: pass contiguous() of it, and keep that; strides {tensor.stride()}")
    flat = tensor.detach().reshape(-1).view(torch.uint8)
    on_host = tensor.device.type == "cpu"
    num_bytes = tensor.numel() * tensor.element_size()
    buffer = flat.numpy().data if on_host else flat
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Local(buffer, num_bytes, tuple(tensor.shape), dtype, str(tensor.device), True, "torch")


def wait_for_stream(tensor: torch.Tensor) -> None:
    """Return when all that was begun on the current stream of the tensor's GPU is done."""
    torch.accelerator.current_stream(tensor.device).synchronize()


def empty_tensor(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A new tensor in host memory."""
    return torch.empty(shape, dtype=getattr(torch, dtype))


def check_type(dtype: torch.dtype) -> tuple[str, int]:
    """Return the name of *dtype* and its size in bytes."""
    return str(dtype).removeprefix("torch."), dtype.itemsize


def lay_over(memory: memoryview, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    """A tensor of *memory*, which must be writable."""
    return torch.frombuffer(memory, dtype=getattr(torch, dtype)).reshape(shape)
