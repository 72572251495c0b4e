"""The undo log of one rank, by which it goes back to its last commit, or forward to the one that it has prepared.

A rank enters the barrier of a commit when it has executed all operations of a step, but for an update that it can
execute alone. One that did not see the barrier pass keeps the update, and copies of what it has overwritten itself,
until it learns whether the step counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from monarch_hpc.tensor.worker.values import Failure, Values

__all__ = ["LOST", "Journal", "is_small_sum", "small_sums"]

LOST = -2
"""Stands for the operation that has spoilt a value which a heal could not keep."""

_SETTLED_ELEMENTS = 16
"""Sums of so few elements are added up with a commit, so that they outlive the death of a rank: losses, norms."""


class Journal:
    """The undo log of one rank.

    Args:
        values: its values.

    Attributes:
        version: number of commits that the values include.
        mark: values with smaller numbers are older than the last commit.
        prepared: number and mark of the commit whose barrier was entered and not seen to pass; None if there is none.
        effects: number of changes since the last commit that outlive the values made since: writes to older values,
            gradients, random draws.
        failed: sum over the operations that have failed since the last commit, to compare ranks by.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self.version = 0
        self.mark = 0
        self.prepared: tuple[int, int] | None = None
        self.effects = 0
        self.failed = 0
        self._update: Callable[[], None] | None = None
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._old: set[int] | None = None
        self._saves = True
        self._undo: list[Callable[[], None]] = []
        self._random: list[tuple[Any, Any]] = []

    # ---- changes ----

    def add_random(self, owner: Any) -> None:
        """Include the random numbers of *owner*, whose `draws` are replaced by each draw, never written to."""
        self._random.append((owner, owner.draws))

    def save(self, tensors: Iterable[Any]) -> None:
        """Copy the memory of tensors that are about to be written to, unless it is younger than the last commit."""
        if not self._saves or not self.mark:
            return
        for tensor in tensors:
            if not isinstance(tensor, torch.Tensor):
                continue
            if "_copied_at" in tensor.__dict__ and tensor._base is not None:
                self.save([tensor._base])
            local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
            storage = local.untyped_storage()
            key = int(storage._cdata)
            if key in self._saved:
                self.effects += 1
            elif key in self._older():
                self.effects += 1
                whole = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
                self._saved[key] = whole, whole.clone()

    def save_all(self, numbers: Iterable[int]) -> None:
        """Copy the memory of values that a function may write to."""
        effects = self.effects
        self.save(self._values.get(number) for number in numbers)
        self.effects = effects  # it has not written yet

    def on_undo(self, undo: Callable[[], None]) -> None:
        """Note a change that *undo* takes back."""
        self.effects += 1
        self._undo.append(undo)

    def _older(self) -> set[int]:
        """The memory of values that are older than the last commit."""
        if self._old is None:
            held = (*self._values.items(), *self._values.freed.items(), *self._values.spoilt.items())
            tensors = [value for number, value in held if number < self.mark and isinstance(value, torch.Tensor)]
            locals_ = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]
            self._old = {int(local.untyped_storage()._cdata) for local in locals_ if local.layout == torch.strided}
        return self._old

    # ---- commits ----

    def prepare(self, version: int, mark: int, update: Callable[[], None] | None = None) -> None:
        """Enter the barrier of commit *version*, after which values from *mark* on are younger.

        Args:
            update: a part of it, to execute once the commit is done.
        """
        self.prepared, self._update = (version, mark), update

    def withdraw(self) -> None:
        """Take back `prepare`: the commit is not done."""
        self.prepared = self._update = None

    def update(self, update: Callable[[], None]) -> None:
        """Execute the update of a commit that is done: nothing takes it back any more."""
        mark, self._values.mark, self._saves = self._values.mark, 0, False
        try:
            update()
        finally:
            self._values.mark, self._saves = mark, True

    def pass_on(self) -> None:
        """Take the prepared commit as done."""
        assert self.prepared is not None
        self.version, self.mark = self.prepared
        self._begin()

    def start_at(self, version: int, mark: int) -> None:
        """Begin at a version whose values were put here."""
        self.version, self.mark = version, mark
        self._begin()

    def _begin(self) -> None:
        self.prepared, self.effects, self.failed, self._old, self._update = None, 0, 0, None, None
        self._saved.clear()
        self._undo.clear()
        self._values.mark = self.mark
        self._values.freed.clear()
        self._values.spoilt.clear()
        self._random = [(owner, owner.draws) for owner, _ in self._random]

    def roll(self, version: int, *, again: bool) -> None:
        """Go to *version*: forward to the prepared commit, or back to the last one. Doing so again changes nothing.

        Args:
            again: whether the operations since then will be executed again, so that they need what they have dropped.

        Raises:
            RuntimeError: this rank can do neither.
        """
        if self.version == version - 1 and self.prepared is not None and self.prepared[0] == version:
            if self._update is not None:
                self.update(self._update)
            self.pass_on()
        elif self.version != version:
            raise RuntimeError(f"this rank is at version {self.version} and prepared {self.prepared}, not {version}")
        self._go_back(again)

    def _go_back(self, again: bool) -> None:
        values = self._values
        with torch.no_grad():
            for whole, saved in self._saved.values():
                storage = whole.untyped_storage()
                if storage.nbytes() < saved.nbytes:  # a function has released it
                    storage.resize_(saved.nbytes)
                whole.copy_(saved)
        for undo in reversed(self._undo):
            undo()
        for owner, state in self._random:
            owner.draws = state
        values.update(values.spoilt)
        if again:
            values.update(values.freed)
        else:
            for number in values.freed:
                values.pop(number, None)  # spoilt first
        for number in [number for number in values if number >= self.mark]:
            del values[number]
        for value in values.values():
            if isinstance(value, torch.Tensor) and value.is_leaf and value.grad is not None:
                value.grad = None
        values.grads.clear()
        values.num_failed = sum(type(value) is Failure for value in values.values())
        self._begin()


def small_sums(values: Values, mark: int) -> list[Any]:
    """The small sums among the values from *mark* on."""
    return [value for number, value in values.items() if number >= mark and is_small_sum(value)]


def is_small_sum(value: Any) -> bool:
    """Whether a value is a sum of few elements that is not added up yet: a commit does that."""
    return (
        any(placement.is_partial() for placement in getattr(value, "placements", ()))
        and value.numel() <= _SETTLED_ELEMENTS
    )
