"""The versions of the state on the ranks, as far as the engine and reads are concerned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

__all__ = ["Versions"]


class Versions(Protocol):
    """Versions of the state on the ranks; see `tensor.healing.recovery`."""

    @property
    def expected(self) -> int:
        """The version that the next value read must have."""
        ...

    @property
    def only_read(self) -> bool:
        """Whether nothing was issued since the last commit that changes anything."""
        ...

    @property
    def last_mark(self) -> int:
        """Values with smaller numbers are older than the last commit."""
        ...

    def settle(self) -> None:
        """Decide at which version the ranks go on."""
        ...

    def note_backward(self, leaves: list[Any]) -> None:
        """Note that a backward pass adds to the gradients of *leaves*."""
        ...

    def note_change(self) -> None:
        """Note a change of what is older than the last commit, which no optimizer makes."""
        ...

    def note_harmless(self) -> None:
        """Note an operation that changes nothing which outlives it."""
        ...

    def covers(self, view: Any) -> bool:
        """Whether steps on the ranks of a view are versions."""
        ...

    @property
    def num_changes(self) -> int:
        """Number of `note_change` so far."""
        ...

    def note_replay(self, steps: Sequence[Any], num_changes: int) -> None:
        """Note that a captured step was replayed.

        Args:
            steps: what it does, in order: leaves of a backward pass, or an optimizer that takes a step.
            num_changes: number of changes that it makes beside.
        """
        ...

    def note_done(self, seq: int) -> None:
        """Note that all ranks have executed what was issued before operation *seq*; on the driver."""
        ...

    def note_optimizers(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Note the states of optimizers that take steps in a captured step, before it is replayed."""
        ...

    def release(self, version: int, effects: int) -> None:
        """Note that the program gets a value."""
        ...

    def release_all(self) -> None:
        """Note that the program knows all that it has issued to be done."""
        ...

    def reread(self, number: int, expected: int, *, only_read: bool) -> Any:
        """The value of a tensor of a step that is done after all; None if there is none."""
        ...
