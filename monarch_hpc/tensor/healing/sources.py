"""The parts of distributed tensors that the program keeps for a while, to send them to ranks that lack them."""

from __future__ import annotations

from collections import OrderedDict

import torch

from monarch_hpc.tensor.stream.holdings import Box

__all__ = ["KeptParts"]


class KeptParts:
    """Parts by number of the value, and by where they are in it.

    Args:
        max_bytes: limit of what is kept; the oldest are dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[int, dict[Box, torch.Tensor]] = OrderedDict()

    def keep(self, number: int, parts: dict[Box, torch.Tensor]) -> None:
        """Keep the parts of a value, which must not change any more."""
        self._kept[number] = parts
        self._num_bytes += _size(parts)
        while self._num_bytes > self._max_bytes and self._kept:
            self._num_bytes -= _size(self._kept.popitem(last=False)[1])

    def part(self, number: int, box: Box, taken: Box) -> torch.Tensor:
        """A part of a kept part: *taken*, counted from its begin."""
        whole = self._kept[number][box]
        with torch._C.DisableTorchFunction():
            return whole[tuple(slice(begin, end) for begin, end in taken)].contiguous()

    def boxes(self) -> dict[int, list[Box]]:
        """Where the parts are that are kept, by number of the value."""
        return {number: list(parts) for number, parts in self._kept.items()}


def _size(parts: dict[Box, torch.Tensor]) -> int:
    return sum(part.nbytes for part in parts.values())
