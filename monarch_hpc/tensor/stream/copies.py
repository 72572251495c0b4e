"""Copies of values on their way from a rank to the program; small tensors travel as plain values."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from monarch_hpc.tensor.stream.records import DTYPES
from monarch_hpc.wire.serializer import MIN_BUFFER_BYTES
from monarch_hpc.wire.tensors import seen_bytes

__all__ = ["Copied", "copy_value", "rebuild"]

Copied = tuple[int, tuple[int, ...], Any]
"""A tensor of up to `MIN_BUFFER_BYTES`: its type's place in `DTYPES`, its shape, its elements. Or -1, nothing, and the
value itself."""

_TYPES = tuple(getattr(torch, name) for name in DTYPES)
_PLACES = {dtype: place for place, dtype in enumerate(_TYPES)}


def copy_value(value: Any) -> Copied:
    """Copy a value: what is done with *value* later is not seen in the copy.

    Raises:
        ValueError: the memory of a tensor was released.
    """
    own = getattr(value, "_local_tensor", value)  # of a whole value that a heal has taken over
    if not isinstance(own, torch.Tensor):
        return -1, (), own
    own = own.detach()
    if own.layout is torch.strided and not own.is_nested:
        seen_bytes(own)
    place = _PLACES.get(own.dtype, -1)
    if place >= 0 and type(own) is torch.Tensor and _is_small(own):
        return place, tuple(own.shape), ctypes.string_at(own.data_ptr(), own.nbytes)
    # The program gets values of devices in host memory: it may have no such device.
    return -1, (), own.clone() if own.device.type == "cpu" else own.cpu()


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether few bytes in a row are all that there is to a tensor."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.is_contiguous()
        and 0 < tensor.nbytes <= MIN_BUFFER_BYTES
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_nested)
    )


def rebuild(copied: Copied) -> Any:
    """The value of which this is the copy; also where a mesh is active."""
    place, shape, data = copied
    if place < 0:
        return data
    with torch._C.DisableTorchFunction():
        return torch.frombuffer(bytearray(data), dtype=_TYPES[place]).view(shape)
