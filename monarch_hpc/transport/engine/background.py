"""The background thread of an engine, which drives while no thread waits.

It does not take over the moment a driver leaves: in a loop of calls the next driver comes within microseconds, and
waking a thread in between would cost more than the call. It takes over after `_HANDBACK_S` without a driver.
"""

from __future__ import annotations

from typing import Protocol

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.engine.sources import Poller
from monarch_hpc.transport.engine.wakeup import Sleeper

__all__ = ["Background"]

_HANDBACK_S = 0.002
"""Time without a driver after which the background thread takes over.

Longer than the gap between two calls of a loop, shorter than a person or a batch of work notices.
"""

_MAX_FAILURES = 20
_RETRY_S = 0.05
"""The engine has failed when so many rounds in a row did, one each interval: memory may be short for a second."""


class Drivable(Protocol):
    """An engine, as its background thread sees it.

    Attributes:
        turn: counts the driver's rounds.
        driver: thread id of the driver, 0 for none.
        left_s: when the last driver left.
        poller: a library that is polled too.
    """

    turn: int
    driver: int
    left_s: float
    poller: Poller | None

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        ...

    def fail(self, error: BaseException) -> None:
        """End because of *error*."""
        ...

    def drive_alone(self) -> bool:
        """Drive until a thread waits; False if another thread drives."""
        ...


class Background:
    """The background thread of *engine*.

    Attributes:
        ident: its thread id; 0 before it has started.
        asleep: whether it sleeps until woken.
    """

    def __init__(self, engine: Drivable) -> None:
        self.ident = 0
        self.asleep = False
        self._engine = engine
        self._sleeper = Sleeper()
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = Thread(self._run)
        self.ident = self._thread.ident

    def wake(self) -> None:
        """Let it drive, or end, soon; from any thread."""
        self._sleeper.wake()

    def join(self) -> None:
        """Wait for its end; no-op on the thread itself."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        engine, num_failures = self._engine, 0
        while not engine.closed:
            turn = engine.turn
            try:
                self._drive()
            except BaseException as error:  # noqa: BLE001 without this thread, peers would take the process for dead
                num_failures = num_failures + 1 if engine.turn <= turn + 1 else 1
                if num_failures == _MAX_FAILURES:
                    engine.fail(error)
                self._sleeper.sleep(_RETRY_S)

    def _drive(self) -> None:
        engine = self._engine
        seen_left_s = -1.0
        while not engine.closed:
            if engine.driver:
                if engine.left_s != seen_left_s:
                    # Drivers come and go, as in a loop of calls: check again later, so that none has to wake us.
                    seen_left_s = engine.left_s
                    poller = engine.poller
                    if poller is not None:
                        poller.wait_away()
                    else:
                        self._sleeper.sleep(_HANDBACK_S)
                    continue
                self.asleep = True
                if engine.driver:
                    self._sleeper.sleep(None)
                self.asleep = False
            elif monotonic() - engine.left_s < _HANDBACK_S or not engine.drive_alone():
                self._sleeper.sleep(_HANDBACK_S)
