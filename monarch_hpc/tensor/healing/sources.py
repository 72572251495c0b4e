"""The parts of distributed tensors that the program keeps for a while, to send them to a replacement again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

__all__ = ["KeptParts"]


class KeptParts:
    """Parts by number of the value, and rank.

    Args:
        max_bytes: limit of what is kept; the oldest are dropped.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._kept: OrderedDict[int, dict[int, torch.Tensor]] = OrderedDict()

    def keep(self, number: int, parts: dict[int, torch.Tensor]) -> None:
        """Keep the parts of a value, which must not change any more."""
        self._kept[number] = parts
        self._num_bytes += _size(parts)
        while self._num_bytes > self._max_bytes and self._kept:
            self._num_bytes -= _size(self._kept.popitem(last=False)[1])

    def part(self, number: int, rank: int) -> Any:
        """The part of a value on a rank; None if it is not kept."""
        return self._kept.get(number, {}).get(rank)

    def ranks(self) -> dict[int, set[int]]:
        """The ranks whose parts are kept, by number of the value."""
        return {number: set(parts) for number, parts in self._kept.items()}


def _size(parts: dict[int, torch.Tensor]) -> int:
    return sum({id(part): part.nbytes for part in parts.values()}.values())
