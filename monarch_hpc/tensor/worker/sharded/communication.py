"""Counts the collectives that changes of placement imply, by the operation that needed them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import _api, _dispatch, _redistribute

__all__ = ["CommunicationCounter", "count_with", "counting"]

_active: list[CommunicationCounter] = []
_is_installed = False


class CommunicationCounter:
    """Collectives on one rank.

    Attributes:
        seq: sequence number of the operation that is executed.
        counts: number of collectives, and bytes that this rank has put into them, by operation and kind.
    """

    def __init__(self) -> None:
        self.seq = -1
        self.counts: dict[tuple[int, str], tuple[int, int]] = {}

    def note(self, kind: str, num_bytes: int) -> None:
        """Count a collective."""
        num, total = self.counts.get((self.seq, kind), (0, 0))
        self.counts[self.seq, kind] = num + 1, total + num_bytes


def count_with(counter: CommunicationCounter | None) -> None:
    """Have collectives counted by *counter* from here on; by none if None."""
    _install()
    _active[:] = [] if counter is None else [counter]


@contextmanager
def counting() -> Iterator[CommunicationCounter]:
    """Count collectives, beside those who do already."""
    _install()
    counter = CommunicationCounter()
    _active.append(counter)
    try:
        yield counter
    finally:
        _active.remove(counter)


def _install() -> None:
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    original: Any = _redistribute.redistribute_local_tensor

    @functools.wraps(original)
    def counted(local_tensor: torch.Tensor, current_spec: Any, target_spec: Any, *args: Any, **kwargs: Any) -> Any:
        if _active:
            for one, other in zip(current_spec.placements, target_spec.placements, strict=True):
                kind = _kind_of(one, other)
                for counter in _active if kind else ():
                    counter.note(kind, local_tensor.nbytes)
        return original(local_tensor, current_spec, target_spec, *args, **kwargs)

    for module in (_api, _dispatch, _redistribute):  # each has a name of its own for it
        module.redistribute_local_tensor = counted  # type: ignore[attr-defined]


def _kind_of(one: Any, other: Any) -> str:
    """The collective that changes a placement along a dimension of a mesh; empty if none does."""
    if one == other or one.is_replicate():
        return ""
    if one.is_partial():
        return "all_reduce" if other.is_replicate() else "reduce_scatter"
    return "all_gather" if other.is_replicate() else "all_to_all"
