"""Pending answers: to calls, to stops, and to messages sent to a port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import MonarchError
from monarch_hpc.wire.frames import Frame

__all__ = ["Answer", "Pending", "Slot"]

Answer = Callable[[Frame | MonarchError], None]
"""Called on the driver with the RESULT or FAILURE frame, or with the error that explains the missing answer."""


class Pending(Protocol):
    """One pending answer."""

    @property
    def incarnation(self) -> int:
        """Incarnation of the callee's process; if that process is lost, the answer fails."""
        ...

    @property
    def where(self) -> str:
        """The callee, in words."""
        ...

    @property
    def answer(self) -> Answer:
        """Called exactly once, with the outcome."""
        ...


@dataclass(slots=True)
class Slot:
    """A pending answer that only holds its fields."""

    incarnation: int
    where: str
    answer: Answer
