"""The values of one rank by number, and the marks of those that could not be made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

__all__ = ["Dependent", "Failure", "Values", "is_lost", "lost_root", "lost_value", "storage_of"]

_NUMBERS = 1 << 40
"""More than there are values of an engine, and operations."""


def lost_root(rank: int, number: int) -> int:
    """Stands for the operation that has spoilt a value, where that is the death of the process which held it."""
    return (rank + 1) * _NUMBERS + number


def is_lost(root: int) -> bool:
    """Whether *root* is of `lost_root`."""
    return root >= _NUMBERS


def lost_value(root: int) -> tuple[int, int]:
    """The rank, and the number of the value, of a `lost_root`."""
    return root // _NUMBERS - 1, root % _NUMBERS


class Failure:
    """Takes the place of a value whose operation failed.

    Attributes:
        root: sequence number of the operation that failed first.
    """

    __slots__ = ("root",)

    def __init__(self, root: int) -> None:
        self.root = root


class Dependent(Exception):
    """An operation is not run because an argument is a `Failure`.

    Args:
        root: sequence number of the operation that failed first.
    """

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self.root = root


class Values(dict[int, Any]):
    """Values by number.

    Attributes:
        num_failed: number of failures among them; while it is 0, arguments need no check.
        grads: failures of gradients, by number of their leaf.
        mark: values with smaller numbers are kept when they are dropped or spoilt, until a commit; see `Journal`.
        freed: those that were dropped.
        spoilt: those that are marked as failed.
        lost_root: the operation that has spoilt values which are not there; 0 if all are.
        lost_rank: this rank, if an earlier process of it has died that held values.
        lost_before: the values of that process have smaller numbers.
    """

    def __init__(self) -> None:
        super().__init__({0: None})
        self.num_failed = 0
        self.grads: dict[int, Failure] = {}
        self.mark = 0
        self.freed: dict[int, Any] = {}
        self.spoilt: dict[int, Any] = {}
        self.lost_root = 0
        self.lost_rank = 0
        self.lost_before = 0

    def __missing__(self, number: int) -> Any:
        if 0 <= number < self.lost_before:
            raise Dependent(lost_root(self.lost_rank, number))
        if self.lost_root:
            raise Dependent(self.lost_root)
        raise KeyError(number)

    def forget(self) -> None:
        """Drop all values."""
        self.clear()
        self.update({0: None})
        self.num_failed = 0
        self.grads.clear()

    def found(self, number: int) -> Any:
        """A value, or a `Failure` also where it is lost."""
        try:
            return self[number]
        except Dependent as lost:
            return Failure(lost.root)

    def replace(self, number: int, value: Any) -> None:
        """Put a value in the place of one that has failed, or is lost."""
        if type(self.get(number)) is Failure:
            self.num_failed -= 1
        self[number] = value

    def free(self, numbers: Iterable[int]) -> None:
        """Drop values."""
        for number in numbers:
            value = self.pop(number, None)
            if number < self.mark and value is not None:
                self.freed[number] = value
            if type(value) is Failure:
                self.num_failed -= 1
            if self.grads:
                self.grads.pop(number, None)

    def check(self, numbers: Iterable[int]) -> None:
        """Check the arguments of an operation.

        Raises:
            Dependent: one of them failed.
        """
        for number in numbers if self.num_failed else ():
            value = self.get(number)
            if type(value) is Failure:
                raise Dependent(value.root)

    def check_grads(self, numbers: Iterable[int], *, dropped: bool) -> None:
        """Check the gradients of leaves, or forget that some failed because all are *dropped*.

        Raises:
            Dependent: one of them failed.
        """
        for number in numbers if self.grads else ():
            failure = self.grads.pop(number, None) if dropped else self.grads.get(number)
            if failure is not None and not dropped:
                raise Dependent(failure.root)

    def fail(self, root: int, results: Iterable[int], written: Iterable[int]) -> None:
        """Mark results of a failed operation, and values and gradients that share memory with what it writes to."""
        failure = Failure(root)
        hit = {storage_of(value) for number in written if isinstance(value := self.get(number), torch.Tensor)}
        spoilt = [n for n, value in self.items() if isinstance(value, torch.Tensor) and storage_of(value) in hit]
        for number, value in self.items() if hit else ():
            grad = value.grad if isinstance(value, torch.Tensor) and value.is_leaf else None
            if grad is not None and storage_of(grad) in hit:
                self.grads[number] = failure
        for number in (*results, *spoilt):
            value = self.get(number)
            if number < self.mark and value is not None:
                self.spoilt.setdefault(number, value)
            if type(value) is not Failure:
                self.num_failed += 1
            self[number] = failure


def storage_of(tensor: torch.Tensor) -> int:
    """Tells the memory of a tensor, or of this rank's part of a sharded one, from other memory."""
    tensor = getattr(tensor, "_local_tensor", tensor)  # of a sharded one
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # a sparse tensor has none
        return id(tensor)
