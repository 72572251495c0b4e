"""An optimizer's step as one unit: committed before it is executed, where it needs no other rank, so without copies.

An operation that has run once on tensors that are placed in the same way, and needed no collective, needs none again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch

from monarch_hpc.tensor.stream import records
from monarch_hpc.tensor.worker.template import Template
from monarch_hpc.tensor.worker.values import Failure, Values

__all__ = ["AnyUpdate", "LocalUpdates", "Update"]

_MAX_KNOWN = 64
"""Sequences of operations that are remembered; a training has one for each optimizer, and one for its first step."""


class AnyUpdate(Protocol):
    """An optimizer's step, of records or of a captured step; see `Update`."""

    operations: tuple[int, ...] | None
    leaves: list[int]

    def lacks(self) -> bool:
        """Whether it uses a value that could not be made."""
        ...

    def placements(self) -> list[Any]:
        """How the tensors are placed that it uses and does not make, and gradients."""
        ...

    def apply(self, sharding: Any) -> None:
        """Execute it; in the context of *sharding*."""
        ...


class Update:
    """The records of one step.

    Args:
        ints: the records.
        templates: descriptions of operations.
        values: values of this rank.

    Attributes:
        operations: the operations, in order; None if there are others than those of torch, and reads of gradients.
        leaves: leaves of autograd's graph whose gradients it reads.
    """

    def __init__(self, ints: list[int], templates: dict[int, Any], values: Values) -> None:
        self.operations: tuple[int, ...] | None = None
        self.leaves: list[int] = []
        self._ints = ints
        self._templates = templates
        self._values = values
        self._used: dict[int, None] = {}
        self._read()

    def _read(self) -> None:
        ints, templates, used = self._ints, self._templates, self._used
        operations: list[int] = []
        i, end = 0, len(ints)
        while i < end:
            number = ints[i]
            if number >= records.FIRST_TEMPLATE:
                template = templates[number]
                if type(template) is not Template or not template.is_op:
                    return
                for place in template.refs:
                    used[ints[i + place]] = None
                i += template.size
            elif number == records.FREE:
                i += 2 + ints[i + 1]
                continue
            elif number == records.GET_GRAD:
                self.leaves.append(ints[i + 1])
                used[ints[i + 1]] = None
                i += 3
            else:
                return
            operations.append(number)
        self.operations = tuple(operations)

    def lacks(self) -> bool:
        """Whether it uses a value that could not be made."""
        return any(type(self._values.get(number)) is Failure for number in self._used)

    def placements(self) -> list[Any]:
        """How the tensors are placed that it uses and does not make, and gradients, which must be summed before."""
        values = self._values
        found = [getattr(values[number], "_spec", None) for number in self._used if number in values]
        return found + [getattr(values[leaf].grad, "_spec", None) for leaf in self.leaves]

    def apply(self, sharding: Any) -> None:
        """Execute it; in the context of *sharding*."""
        grad = torch.is_grad_enabled()
        try:
            self._apply(sharding)
        finally:
            torch._C._set_grad_enabled(grad)

    def _apply(self, sharding: Any) -> None:
        ints, templates, values = self._ints, self._templates, self._values
        i, end = 0, len(ints)
        while i < end:
            number = ints[i]
            if number == records.FREE:
                size = 2 + ints[i + 1]
                values.free(ints[i + 2 : i + size])
            elif number == records.GET_GRAD:
                size = 3
                values[ints[i + 2]] = sharding.grad_of(ints[i + 1], values)
            else:
                template = templates[number]
                size = template.size
                torch._C._set_grad_enabled(template.grad)
                template.run(values, ints, i)
            i += size


class LocalUpdates:
    """The steps that this rank is known to take without others."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], list[Any]] = {}

    def has(self, update: AnyUpdate, values: Values) -> bool:
        """Whether *update* is one of them, and all that it uses is there."""
        if update.operations is None or (values.num_failed and update.lacks()):
            return False
        if values.grads and not values.grads.keys().isdisjoint(update.leaves):
            return False
        known = self._known.get(update.operations)
        if known is None:
            return False
        found = update.placements()
        return len(found) == len(known) and all(
            one is other or one == other for one, other in zip(found, known, strict=True)
        )

    @contextmanager
    def learning(self, update: AnyUpdate | None, num_failures: Callable[[], int]) -> Iterator[None]:
        """Watch an update, which is executed meanwhile.

        Args:
            update: the update, whose gradients are summed; None for one that is not to be known.
            num_failures: number of operations that have failed on this rank.
        """
        from monarch_hpc.tensor.worker.sharded.communication import counting  # not before it is needed: DTensor

        operations = None if update is None else update.operations
        if update is None or operations is None:
            yield
            return
        before, found = num_failures(), update.placements()
        with counting() as counter:
            yield
        self._known.pop(operations, None)
        if not counter.counts and num_failures() == before:
            if len(self._known) >= _MAX_KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[operations] = found
