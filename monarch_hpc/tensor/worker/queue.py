"""The order of what a stream does on a rank: its thread's on CPUs, that of a CUDA stream on a GPU."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["RankQueue"]


class RankQueue:
    """A queue of operations of one rank.

    Args:
        is_own: whether GPUs work on it beside their default stream.
    """

    def __init__(self, *, is_own: bool) -> None:
        self._is_own = is_own
        self._stream: Any = None

    def entered(self) -> AbstractContextManager[Any]:
        """A block whose operations are of this queue."""
        if not self._is_own or not torch.cuda.is_available():
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
        return torch.cuda.stream(self._stream)

    def mark(self, value: Any) -> Any:
        """The point of this queue at which *value* is handed over; None where nothing runs behind its thread."""
        if not isinstance(value, torch.Tensor) or not value.is_cuda:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's own
        event.record()
        return event

    def follow(self, value: Any, mark: Any) -> None:
        """Have what comes after in this queue wait for the *mark* of another one, which has handed *value* over."""
        if mark is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(mark)
            value.record_stream(stream)
