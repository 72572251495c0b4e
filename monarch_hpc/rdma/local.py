"""Memory of this process that transfers read and write: arrays, tensors and other objects with buffers."""

from __future__ import annotations

import ctypes
import functools
import importlib
import sys
from typing import Any

from monarch_hpc.core.arguments import shown
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.rdma.devices import describe

__all__ = ["Local", "allocation_of", "check_types", "check_unmasked", "look_at"]

_TENSORS = "monarch_hpc.rdma.tensors"
"""Reads torch's tensors; imported once a program uses torch."""

_FORMATS = {"c": "uint8", "?": "bool", "e": "float16", "f": "float32", "d": "float64"}
_BYTES = frozenset(("uint8", "int8"))


@dataclass(frozen=True, slots=True)
class Local:
    """One object's memory.

    Attributes:
        buffer: its bytes, for the transport: a flat memoryview, or an object with `__cuda_array_interface__`.
        shape: sizes of its dimensions, in elements.
        dtype: name of its elements' type: ``float32``, ``bfloat16``.
        device: ``cpu``, or the device as torch names it: ``cuda:0``.
        kind: the library that it belongs to: ``numpy``, ``torch``, or empty for other buffers.
    """

    buffer: Any
    num_bytes: int
    shape: tuple[int, ...]
    dtype: str
    device: str
    writable: bool
    kind: str

    @property
    def address(self) -> int:
        """Address of its first byte; it must be writable."""
        if isinstance(self.buffer, memoryview):
            return ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        return int(self.buffer.__cuda_array_interface__["data"][0])

    def part(self, num_bytes: int) -> Any:
        """The first *num_bytes* of its buffer."""
        return self.buffer if num_bytes == self.num_bytes else self.buffer[:num_bytes]

    def check_type(self, what: str, dtype: str) -> None:
        """See `check_types`."""
        check_types(what, self.dtype, dtype)


def check_types(what: str, own: str, dtype: str) -> None:
    """Refuse elements of type *own* that are neither of type *dtype*, which a buffer has, nor bytes.

    Raises:
        TypeError: naming both types; *what* names the memory with the elements.
    """
    if dtype != own and dtype not in _BYTES and own not in _BYTES:
        raise TypeError(
            f"{what} has elements of {own}, the buffer of {dtype}: convert them at their owner, "
            "or pass a view of bytes (uint8) to move them as they are"
        )


def look_at(what: str, data: object, *, writable: bool) -> Local:
    """Describe the memory of *data*.

    Args:
        what: names *data* in errors.
        writable: whether it must be writable.

    Raises:
        TypeError: it has no memory that can be moved as it is.
        ValueError: it has no bytes, is not contiguous, or is read-only where it must not be.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(data, torch.Tensor):
        local: Local = importlib.import_module(_TENSORS).look_at_tensor(what, data)
    elif (array := describe(what, data)) is not None:
        local = Local(array.buffer, array.num_bytes, array.shape, array.dtype, array.device, array.writable, "")
    elif (numpy is not None and isinstance(data, numpy.ndarray)) or hasattr(data, "__array_interface__"):
        local = _look_at_array(what, data)
    else:
        local = _look_at_buffer(what, data)
    if not local.num_bytes:
        raise ValueError(f"{what} has no bytes: shape {local.shape}")
    if writable and not local.writable:
        raise ValueError(f"{what} is read-only: pass a copy, or writable=False for a buffer that is only read")
    return local


def allocation_of(data: object) -> tuple[int, int] | None:
    """Addresses of the memory that an array or a tensor is a part of, and keeps: the first, and the one behind it.

    None where nothing larger was allocated for it: other buffers, and arrays of files, which may be much larger.
    """
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(data, torch.Tensor):
        storage = data.untyped_storage()
        first: int = storage.data_ptr()
        return first, first + storage.nbytes()
    if numpy is None or not isinstance(data, numpy.ndarray):
        return None
    root = data
    while isinstance(root.base, numpy.ndarray):
        root = root.base
    if root.base is not None or not root.flags.forc:
        return None
    first = root.ctypes.data
    return first, first + root.nbytes


def check_unmasked(what: str, array: Any) -> None:
    """Refuse a masked array, which is two.

    Raises:
        TypeError: saying what to pass instead; *what* names it.
    """
    masked = sys.modules.get("numpy.ma")
    if masked is not None and isinstance(array, masked.MaskedArray):
        raise TypeError(
            f"{what} is a masked array, whose elements and mask are two arrays: pass numpy.ma.getdata(...) and "
            "numpy.ma.getmaskarray(...) of it, each by itself"
        )


def _look_at_array(what: str, array: Any) -> Local:
    check_unmasked(what, array)
    dtype = array.dtype
    if dtype.hasobject:
        raise TypeError(f"{what} has elements of {dtype}, which are references: only plain data can be moved")
    name = _name_of(dtype)
    if not name:
        raise TypeError(
            f"{what} has elements of {dtype}, not of a plain native type: pass a view of bytes, view('uint8')"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"{what} is not contiguous: pass numpy.ascontiguousarray(...) of it")
    view = memoryview(array.reshape(-1).view("uint8")) if array.nbytes else memoryview(b"")
    return Local(view, array.nbytes, tuple(array.shape), name, "cpu", bool(array.flags.writeable), "numpy")


@functools.cache
def _name_of(dtype: Any) -> str:
    """The name of *dtype*; empty if it does not say all of it: where bytes are swapped, or an element has fields."""
    try:
        name: str = dtype.name
        return name if sys.modules["numpy"].dtype(name) == dtype else ""
    except TypeError:
        return ""


def _look_at_buffer(what: str, data: object) -> Local:
    try:
        view = memoryview(data)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{what} must be an array, a torch tensor or a buffer, not {shown(data)}") from None
    if not view.c_contiguous:
        raise ValueError(f"{what} is not contiguous: shape {view.shape}, strides {view.strides}")
    dtype = _FORMATS.get(view.format)
    if dtype is None:
        if view.format not in tuple("bBhHiIlLqQnN"):
            raise TypeError(f"{what} has elements of format {view.format!r}: pass a view of bytes, view.cast('B')")
        dtype = f"{'u' if view.format.isupper() else ''}int{8 * view.itemsize}"
    flat = view.cast("B") if view.nbytes else memoryview(b"")
    return Local(flat, view.nbytes, tuple(view.shape or ()), dtype, "cpu", not view.readonly, "")
