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
        pool = torch.cuda.graph_pool_handle()
        self._device = next((slot.device for slot in slots if slot is not None and slot.is_cuda), None)
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream()
            beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
            beside.wait_stream(stream)
            with torch.cuda.stream(beside):
                torch._C._cuda_clearCublasWorkspaces()  # an older one could be freed while the graph uses it
                self._graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    code(slots)
                    self._graph.capture_end()
                except BaseException:
                    self._end_capture(pool)
                    raise
                finally:
                    torch._C._cuda_clearCublasWorkspaces()  # those made meanwhile are in its pool
            stream.wait_stream(beside)

    def _end_capture(self, pool: Any) -> None:
        """End a capture that failed; the operator's own error says more than those here.

        An operator that no capture may have spoils it, and torch's `capture_end` then raises before its allocator ends
        it. That would go on as in a capture: it would never free what several streams have used.
        """
        with contextlib.suppress(RuntimeError):
            self._graph.capture_end()
        with contextlib.suppress(RuntimeError):  # it is at its end, and the pool goes with the graph
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)

    def replay(self) -> None:
        """Execute them in the current stream."""
        with torch.cuda.device(self._device):
            self._graph.replay()
