"""Tensors of a device on their way through host memory, which is pinned where the device copies from such faster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["HOST", "device_of", "present_stream", "to_device", "to_host"]

HOST = torch.device("cpu")
"""Host memory."""

_PINS = frozenset({"cuda"})
"""Types of devices to which torch copies from pinned memory without another copy, and without waiting."""

_MOST_PINNED_BYTES = 64 << 20
"""Bytes of the largest tensor that is pinned: torch rounds such memory up to a power of two, and keeps it for ever.

Larger ones are mostly those that a heal or a checkpoint moves, of which each is moved once."""


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy in host memory; the bytes are there when it returns."""
    with torch.no_grad():
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=_is_pinned_for(tensor, tensor.device))
        return host.copy_(tensor.detach())


def to_device(host: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The tensor in the memory of a device, once what was issued to its present stream before is done.

    It is *host* itself if that is there already.
    """
    if host.device.type == device.type:
        return host
    with torch.no_grad():
        pins = _is_pinned_for(host, device)
        staged = host.detach().pin_memory() if pins and not host.is_pinned() else host.detach()
        # torch keeps pinned memory until the copy is done, also if nobody holds it any more.
        return torch.empty_like(staged, device=device).copy_(staged, non_blocking=pins)


def _is_pinned_for(tensor: torch.Tensor, device: torch.device) -> bool:
    return device.type in _PINS and tensor.nbytes <= _MOST_PINNED_BYTES


def device_of(kind: str) -> torch.device:
    """The device of a type that this rank uses: the present one, of those that it was granted.

    Raises:
        RuntimeError: it has none.
    """
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} does not reach a GPU")
    return torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)


def present_stream(device: torch.device) -> Callable[[], AbstractContextManager[Any]]:
    """What enters, on any thread, the stream that is present on this one: threads begin in the default one."""
    if device.type != "cuda":
        return nullcontext
    stream = torch.cuda.current_stream(device)
    return lambda: torch.cuda.stream(stream)
