"""Explains why a call gets no answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from monarch_hpc.core.errors import DeliveryUnknown, SupervisionError, TransportError

__all__ = ["Causes", "OnCause", "report_unknown"]

OnCause = Callable[[SupervisionError], None]


class Causes(Protocol):
    """The causes of procs' deaths: a proc asks the program for them, the program gets them from the agents."""

    def explain(self, incarnation: int, where: str, error: TransportError, on_cause: OnCause) -> None:
        """Report why the callee at *where* was lost: `ProcDied` with the cause, or `DeliveryUnknown` without one.

        May be called on any thread; *on_cause* is called on the driver, now or once the cause is known.
        """
        ...

    def report_death(self, incarnation: int, where: str, cause: str, on_cause: OnCause) -> None:
        """Report the death of the callee at *where*, because of *cause*, or of a known one with more detail."""
        ...

    def was_stopped(self, incarnation: int, cause: str) -> bool:
        """Whether a proc ended because it was asked to; *cause* is the reported one."""
        ...


def report_unknown(where: str, error: TransportError, on_cause: OnCause) -> None:
    """Report that the outcome of a call is unknown."""
    unknown = DeliveryUnknown(where, str(error))
    unknown.__cause__ = error
    on_cause(unknown)
