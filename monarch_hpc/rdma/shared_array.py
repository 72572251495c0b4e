"""Shared arrays: one array or tensor that all procs of a host write, and that other hosts read as a buffer."""

from __future__ import annotations

from typing import Any

from monarch_hpc.core.storage.segment import Access
from monarch_hpc.rdma.buffer import RDMABuffer, rebuild
from monarch_hpc.rdma.shared import empty

__all__ = ["SharedArray", "shared_array"]


class SharedArray(RDMABuffer):
    """A reference to an array or a tensor that the procs of its host share; it may be sent in messages.

    `map` returns the same writable memory in all of them. Elsewhere it is a buffer like any other. The memory is given
    back at the end of the actor that made it, or by `drop`, once no proc has it mapped any more. Nothing orders the
    accesses of several procs but their messages, and the atomic changes of `RDMAAction`.
    """

    _access = Access.WRITE

    def __reduce__(self) -> tuple[Any, ...]:
        _, parts = super().__reduce__()
        return rebuild, (*parts, SharedArray)


def shared_array(shape: int | tuple[int, ...], dtype: Any = "float64") -> SharedArray:
    """Make an array, or a tensor if *dtype* is torch's, for all procs of this host; it begins as zeros.

    Raises:
        TypeError, ValueError, MemoryError: as `rdma.empty` does.
    """
    return SharedArray(empty(shape, dtype))
