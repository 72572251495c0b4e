"""Spans of memory for UCX, with contexts for its threads if the memory is a GPU's."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from monarch_hpc.transport.memory.device.copies import device_at

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx

__all__ = ["make_span"]


def make_span(buffer: object, writable: bool) -> _ucx.Span:
    """The span of *buffer*; if it is memory of a GPU, threads that call UCX have a context from here on.

    Raises:
        TypeError, BufferError: *buffer* has no contiguous memory, or is read-only although *writable*.
    """
    from monarch_hpc.transport.ucx import _ucx

    span = _ucx.Span(buffer, writable)
    if span.device:
        with contextlib.suppress(OSError):  # no driver of NVIDIA's: another kind of GPU, whose UCX needs no context
            cuda, device = device_at(span.address)
            _ucx.use_gpu(*cuda.context_calls(device))
    return span
