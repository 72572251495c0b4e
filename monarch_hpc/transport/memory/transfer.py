"""A transfer in progress, and its end."""

from __future__ import annotations

import functools
from _thread import allocate_lock
from collections.abc import Callable

from monarch_hpc.core.errors import TransportError
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Transfer"]


class Transfer:
    """A get or put in flight. It always ends: with the data, an error, or the loss of the peer.

    Args:
        what: describes the transfer in errors.
    """

    def __init__(self, engine: Engine, what: str) -> None:
        self._engine = engine
        self._what = what
        self._done = False
        self._error: TransportError | None = None
        self._callbacks: list[Callable[[Transfer], None]] = []
        self._stop: Callable[[TransportError], object] | None = None
        self._lock = allocate_lock()

    @property
    def done(self) -> bool:
        """Whether it has ended, successfully or not; its buffer is the caller's again."""
        return self._done

    @property
    def error(self) -> TransportError | None:
        """Why it failed; None while it runs and after success."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the data has been transferred. After a timeout the transfer continues.

        Raises:
            MemoryAccessError: the peer has no such memory, or does not allow this access.
            PeerLost, ChannelClosed: the channel ended first.
            TimeoutError: the transfer still runs after *timeout_s* seconds.
        """
        if not self._engine.wait(lambda: self._done, timeout_s) and not self._done:
            raise TimeoutError(f"{self._what}: not done after {timeout_s:g} s")
        if self._error is not None:
            raise self._error.with_traceback(None)  # it is raised again and again

    def on_done(self, callback: Callable[[Transfer], None]) -> None:
        """Call *callback* on the driver of the engine when the transfer has ended."""
        with self._lock:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._engine.call_soon(functools.partial(callback, self))

    def stop(self, error: TransportError) -> bool:
        """End the transfer with *error* if that can be done without its peer; on the driver.

        Returns:
            Whether it has ended, so that its buffer is the caller's again. False where a fabric writes or reads the
            buffer until the peer has answered or is lost.
        """
        if not self._done and self._stop is not None:
            self._stop(error)
        return self._done

    def stop_by(self, stop: Callable[[TransportError], object]) -> None:
        """Let `stop` end the transfer with *stop*; for its implementation."""
        self._stop = stop

    def finish(self, error: TransportError | None = None) -> None:
        """End the transfer; for its implementation. Only the first end counts."""
        with self._lock:
            if self._done:
                return
            self._error = error
            self._done = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._engine.call_soon(functools.partial(callback, self))
        self._engine.wake_waiters()
