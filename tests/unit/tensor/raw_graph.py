"""A graph of operators on a CPU, for tests: like one of a GPU it knows addresses, not tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

__all__ = ["RawGraph"]

_POISON = 0xA5


class _Raw(NamedTuple):
    """A tensor by its address."""

    begin: int
    num_bytes: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


class RawGraph:
    """Operators that are executed again on the memory of their capture, whoever has that memory by then.

    The capture leaves all memory as it was, and has no results: these are poison until the first replay.

    Args:
        code: runs the operators, with the slots.
        slots: gets tensors in memory of the graph.
    """

    num_captures = 0
    num_replays = 0
    num_failing = 0  # of coming replays that fail after they have written to what they got

    def __init__(self, code: Callable[[list[Any]], None], slots: list[Any]) -> None:
        self._code = code
        self._num_slots = len(slots)
        given = {slot: tensor for slot, tensor in enumerate(slots) if tensor is not None}
        self._given = {slot: _raw_of(tensor) for slot, tensor in given.items()}
        memories = {
            raw.begin: tensor.untyped_storage()
            for tensor, raw in zip(given.values(), self._given.values(), strict=True)
        }
        saved = [(memory, memory.clone()) for memory in memories.values()]
        try:
            code(slots)
        finally:
            for memory, before in saved:
                memory.copy_(before)
        own = {tensor.untyped_storage()._cdata for tensor in given.values()}
        self._made = {
            slot: tensor.untyped_storage()
            for slot, tensor in enumerate(slots)
            if tensor is not None and slot not in given and tensor.untyped_storage()._cdata not in own
        }
        for memory in self._made.values():
            _bytes_of(memory).fill_(_POISON)
        RawGraph.num_captures += 1

    def replay(self) -> None:
        """Execute them."""
        slots: list[Any] = [None] * self._num_slots
        memories: dict[int, Any] = {}
        for slot, raw in self._given.items():
            if raw.begin not in memories:
                memories[raw.begin] = _memory_at(raw.begin, raw.num_bytes)
            empty = torch.empty(0, dtype=raw.dtype)
            slots[slot] = empty.set_(memories[raw.begin], raw.offset, raw.shape, raw.stride)
        self._code(slots)
        RawGraph.num_replays += 1
        if RawGraph.num_failing:
            RawGraph.num_failing -= 1
            raise RuntimeError("the device is lost")
        for slot, memory in self._made.items():
            _bytes_of(memory).copy_(_bytes_of(slots[slot].untyped_storage()))


def _raw_of(tensor: torch.Tensor) -> _Raw:
    memory = tensor.untyped_storage()
    offset = int(tensor.storage_offset())
    return _Raw(memory.data_ptr(), memory.nbytes(), offset, tuple(tensor.shape), tensor.stride(), tensor.dtype)


def _memory_at(begin: int, num_bytes: int) -> Any:
    if not num_bytes:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    return torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(begin), dtype=torch.uint8).untyped_storage()


def _bytes_of(memory: Any) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(memory, 0, (memory.nbytes(),), (1,))
