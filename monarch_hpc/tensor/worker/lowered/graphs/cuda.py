"""Records graphs of CUDA; all that touches them is here. Nothing else of graphs depends on a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["CudaGraph"]


class CudaGraph:
    """Operators on the current GPU, captured without being executed; see `GraphRecorder`.

    It has a pool of memory of its own, which goes with it. It is captured in a stream beside that of the worker, which
    waits for it; only calls of this thread can spoil it. It is replayed in the worker's stream, in which the copies
    before and after it are made: sharded tensors have no other one. Operators that draw random numbers are in no graph,
    so no generator is registered.

    Args:
        code: runs the operators, with the slots.
        slots: gets tensors in memory of the graph.
    """

    def __init__(self, code: Callable[[list[Any]], None], slots: list[Any]) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._device = next((slot.device for slot in slots if slot is not None and slot.is_cuda), None)
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
            beside.wait_stream(stream)
            with torch.cuda.stream(beside):
                torch._C._cuda_clearCublasWorkspaces()  # an older one could be freed while the graph uses it
                self._graph.capture_begin(capture_error_mode="thread_local")
                try:
                    code(slots)
                except BaseException:
                    with contextlib.suppress(RuntimeError):  # the operator's own error says more
                        self._graph.capture_end()
                    raise
                self._graph.capture_end()
                torch._C._cuda_clearCublasWorkspaces()  # those made meanwhile are in its pool
            stream.wait_stream(beside)

    def replay(self) -> None:
        """Execute them in the current stream."""
        with torch.cuda.device(self._device):
            self._graph.replay()
