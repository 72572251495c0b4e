"""A clock and its timers, which stand still until a test advances them."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["ManualClock", "ManualTimer"]


class ManualTimer:
    """A callback that runs once, unless cancelled first.

    Attributes:
        at_s: the time when it is due.
    """

    def __init__(self, clock: ManualClock, at_s: float, callback: Callable[[], None]) -> None:
        self.at_s = at_s
        self.callback = callback
        self._clock = clock

    def cancel(self) -> None:
        """Prevent the callback from running; no-op if it has run."""
        self._clock.remove(self)


class ManualClock:
    """A clock whose time is set by a test; calling it returns the time, as with `time.monotonic`.

    Attributes:
        now_s: the time, in seconds.
    """

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s
        self._timers: list[ManualTimer] = []

    def __call__(self) -> float:
        return self.now_s

    @property
    def timers(self) -> list[float]:
        """Seconds left to each pending timer, the next one first."""
        return [timer.at_s - self.now_s for timer in self._timers]

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        """Run *callback* when the clock has been advanced by *delay_s* seconds."""
        assert delay_s >= 0, f"a timer in the past: {delay_s:g} s"
        timer = ManualTimer(self, self.now_s + delay_s, callback)
        self._timers.append(timer)
        self._timers.sort(key=lambda pending: pending.at_s)  # stable: equal times run in the order of starts
        return timer

    def remove(self, timer: ManualTimer) -> None:
        """Forget a timer, see `ManualTimer.cancel`."""
        if timer in self._timers:
            self._timers.remove(timer)

    def advance(self, seconds: float) -> None:
        """Let time pass; due timers run in order, each at its own time, including those that callbacks start."""
        end_s = self.now_s + seconds
        while self._timers and self._timers[0].at_s <= end_s:
            self._fire()
        self.now_s = end_s

    def advance_to_next(self) -> None:
        """Let time pass until the next timer is due, and run that one."""
        assert self._timers, "no timer is pending"
        self._fire()

    def _fire(self) -> None:
        timer = self._timers.pop(0)
        self.now_s = max(self.now_s, timer.at_s)
        timer.callback()
