"""A flag that threads await by driving the engine."""

from __future__ import annotations

from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Flag"]


class Flag:
    """A flag that threads await by driving the engine."""

    __slots__ = ("_engine", "_set")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._set = False

    def set(self) -> None:
        """Set the flag, for good; from any thread."""
        self._set = True
        self._engine.wake_waiters()

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._set

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the flag is set; return False if *timeout_s* passed first."""
        return self._engine.wait(self.is_set, timeout_s)
