"""One callback at one time."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Timer"]


class Timer:
    """A callback that will run once, unless cancelled first."""

    __slots__ = ("_callback", "at_s")

    def __init__(self, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        """Make sure that the callback does not run (again)."""
        self._callback = None

    def fire(self) -> None:
        """Run the callback, if it was not cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
