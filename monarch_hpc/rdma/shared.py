"""Shareable memory: arrays and tensors that other procs of their host read without a copy, or use as their own."""

from __future__ import annotations

import importlib
import math
import operator
import sys
from typing import Any

from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import current_runtime
from monarch_hpc.core.arguments import shown
from monarch_hpc.core.errors import MemoryAccessError, TransportError
from monarch_hpc.core.storage.segment import Access, Span, create, open_span
from monarch_hpc.core.text.units import format_size
from monarch_hpc.rdma.remote_use import AskUse
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.peer import Answered, MemoryPeer

__all__ = ["empty", "lay_over", "map_memory"]

_TENSORS = "monarch_hpc.rdma.tensors"
_ARRAYS = "monarch_hpc.rdma.arrays"


def empty(shape: int | tuple[int, ...], dtype: Any = "float64") -> Any:
    """Return a new array, or a tensor if *dtype* is torch's, in memory that procs of this host can share.

    It begins as zeros. Procs of the same host copy an `RDMABuffer` of it, or of a part of it, by one memcpy, or map it
    without any copy by `RDMABuffer.map`; other hosts read it like any buffer. It takes a file descriptor as long as it
    exists.

    Args:
        dtype: anything that NumPy takes for plain data, or a ``torch.dtype``.

    Raises:
        TypeError: *shape* or *dtype* is none, or its elements are references.
        ValueError: a size is negative, or there would be no bytes.
        MemoryError: there is none, or no descriptor for it.
    """
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, tuple | list) else (shape,)))
    except TypeError:
        raise TypeError(f"shape must be a number or a tuple of numbers, not {shown(shape)}") from None
    torch = sys.modules.get("torch")
    door = importlib.import_module(_TENSORS if torch is not None and isinstance(dtype, torch.dtype) else _ARRAYS)
    name, item_bytes = door.check_type(dtype)
    num_bytes = math.prod(sizes) * item_bytes
    if min(sizes, default=1) < 0 or not num_bytes:
        raise ValueError(f"shape {sizes} has no bytes: each size must be at least 1")
    return door.lay_over(_new_memory(num_bytes), sizes, name)


def _new_memory(num_bytes: int) -> memoryview:
    """Return new shareable memory.

    Raises:
        MemoryError: there is none, or no descriptor for it.
    """
    try:
        return create(num_bytes)
    except OSError as error:
        raise MemoryError(
            f"no shareable memory of {format_size(num_bytes)}: {error.strerror}; each piece takes a file descriptor: "
            "take one larger array and make buffers of its parts, or raise 'ulimit -n'"
        ) from error


def lay_over(kind: str, memory: memoryview, shape: tuple[int, ...], dtype: str) -> Any:
    """Return *memory* as an array or a tensor, or as it is for other kinds; see `rdma.local.Local`."""
    if not kind:
        return memory
    return importlib.import_module(_TENSORS if kind == "torch" else _ARRAYS).lay_over(memory, shape, dtype)


def map_memory(
    proc: ProcRef, identifier: bytes, part: slice, access: Access, what: str, timeout_s: float | None
) -> tuple[AskUse, list[memoryview]]:
    """Map a part of a memory, which must be shareable, and of a process of this host.

    Args:
        identifier: of the memory; its owner is *proc*.
        what: describes it, for errors.

    Returns:
        What is done when it is mapped, and a list which has the view then.
    """
    views: list[memoryview] = []

    def ask(memory: MemoryPeer, answered: Answered) -> None:
        # Mapped where the answer is handled, which is before the owner's word that the memory is dropped.
        memory.open(identifier, lambda answer: answered(map_it(answer)))

    def map_it(answer: bytes | TransportError) -> bytes | TransportError:
        if isinstance(answer, TransportError):
            return answer
        try:
            views.append(_map_part(Key.parse(answer), part, access))
        except OSError as error:
            return MemoryAccessError(proc.host, f"{what} cannot be mapped: {error}")
        return b""

    opening = AskUse(current_runtime(), proc, what, timeout_s, ask)
    opening.begin()
    return opening, views


def _map_part(key: Key, part: slice, access: Access) -> memoryview:
    if not key.span:
        raise OSError("it was not made by rdma.empty or shared_array; read it instead")
    span = Span.parse(key.span)
    if not span.near:
        raise OSError("it lies on another host, or with another user; read it instead")
    if access is Access.WRITE and not key.writable:
        access = Access.READ
    return open_span(span, access)[part]
