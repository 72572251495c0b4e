"""One-shot timers."""

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
        """Prevent the callback from running."""
        self._callback = None

    def fire(self) -> None:
        """Run the callback, unless it was cancelled."""
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()
