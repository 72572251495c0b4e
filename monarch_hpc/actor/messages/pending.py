"""What waits for the answer to a call, a stop, or a message to a port."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from monarch_hpc.core.errors import MonarchError
from monarch_hpc.wire.frames import Frame

__all__ = ["Answer", "Pending", "Slot"]

Answer = Callable[[Frame | MonarchError], None]
"""Called on the driver with the RESULT or FAILURE frame of a call, or with why there is none."""


class Pending(Protocol):
    """Who waits for one answer."""

    @property
    def incarnation(self) -> int:
        """Of the process that is to answer: when it is gone, no answer comes."""
        ...

    @property
    def where(self) -> str:
        """Who is to answer, in words."""
        ...

    @property
    def answer(self) -> Answer:
        """Told exactly once how it ended."""
        ...


@dataclass(slots=True)
class Slot:
    """The plain one."""

    incarnation: int
    where: str
    answer: Answer
