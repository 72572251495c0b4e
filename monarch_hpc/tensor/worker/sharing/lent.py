"""Values that a rank hands to others of its process: copies for actors, and what a stream lends to another."""

from __future__ import annotations

from collections import OrderedDict
from threading import Condition
from typing import Any

from monarch_hpc.tensor.worker.values import Failure, is_lost

__all__ = ["LentValues"]


class LentValues:
    """Values by token, until they are taken.

    Args:
        rank: rank in the mesh of procs.
        max_lent: number of copies that may wait for actors; older ones are dropped.
    """

    def __init__(self, rank: int, max_lent: int) -> None:
        self._rank = rank
        self._max_lent = max_lent
        self._lent: OrderedDict[int, Any] = OrderedDict()
        self._loans: dict[int, Any] = {}
        self._last_lent = 0
        self._cause = ""
        self._changed = Condition()

    def lend(self, token: int, value: Any, *, is_loan: bool = False) -> None:
        """Hand over a copy of a value, or the value itself.

        Args:
            token: its number.
            value: it.
            is_loan: whether a stream takes it, not an actor.
        """
        with self._changed:
            (self._loans if is_loan else self._lent)[token] = value
            self._last_lent = token
            while len(self._lent) > self._max_lent:
                self._lent.popitem(last=False)
            self._changed.notify_all()

    def borrowed(self, token: int) -> object:
        """Wait for a lent copy, and take it; from any thread.

        Args:
            token: number of the copy; they are lent in the order of these numbers.

        Raises:
            RuntimeError: it failed, it was dropped because too many others waited, or the mesh ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: token <= self._last_lent or self._cause)
            if token not in self._lent:
                raise RuntimeError(self._dropped() if token <= self._last_lent else self._cause)
            value = self._lent.pop(token)
        if type(value) is Failure:
            why = "it died with its process" if is_lost(value.root) else f"operation {value.root} failed"
            raise RuntimeError(f"this mesh tensor has no value on rank {self._rank}: {why}")
        return value

    def loaned(self, token: int) -> Any:
        """Wait for what a stream hands to another one, and take it; from any thread.

        Raises:
            RuntimeError: the mesh ended.
        """
        with self._changed:
            self._changed.wait_for(lambda: token in self._loans or self._cause)
            if token not in self._loans:
                raise RuntimeError(self._cause)
            return self._loans.pop(token)

    def end(self, cause: str) -> None:
        """Have those who wait do so no longer."""
        with self._changed:
            self._cause = cause
            self._changed.notify_all()

    def reopen(self) -> None:
        """Wait again: the mesh is healed."""
        self._cause = ""

    def _dropped(self) -> str:
        return (
            f"the mesh tensor of this call was dropped on rank {self._rank}: more than {self._max_lent} later ones "
            "waited for their actors, see tensor.max_lent; wait for answers in between, or raise it"
        )
