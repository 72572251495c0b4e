"""The I/O engine of a process, driven by the threads that wait.

A thread that waits for a `Flag` polls the sockets itself, so that an answer reaches it without a thread switch. When
no thread waits, a background thread polls. At any moment at most one thread, the driver, runs callbacks: state that
only callbacks touch needs no lock.
"""

from __future__ import annotations

import heapq
from _thread import allocate_lock, get_ident
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from threading import local

from monarch_hpc.core.errors import EngineFailed
from monarch_hpc.core.process.fork import divert, watch_forks
from monarch_hpc.core.process.signals import may_be_signal
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.transport.engine.background import Background
from monarch_hpc.transport.engine.faults import OnFault, is_fatal, log_fault
from monarch_hpc.transport.engine.interrupts import ThreadSleeper, make_sleeper
from monarch_hpc.transport.engine.sources import Poller, Sources
from monarch_hpc.transport.engine.wakeup import Sleeper, holds

__all__ = ["STALE_S", "Engine"]

_LONGEST_S = 86400.0
"""Longest sleep; then the time is checked again: epoll counts milliseconds in 31 bits, which are 24 days."""

STALE_S = 0.1
"""A timer that is so late shows that the process was stopped or starved, and has read nothing meanwhile."""

_MAX_EVENTS = 64  # in one round; select's own default allocates room for a thousand each time

_Waiter = tuple[Sleeper, Callable[[], bool]]
"""A waiting thread, and the condition that it waits for."""


class Engine(Sources):
    """Polls file descriptors and timers for all threads of a process.

    Args:
        spin_s: how long a driver polls without sleeping before it sleeps, in seconds; may be changed at any time.

    Attributes:
        failure: what has ended the engine; None unless it ended by itself.
        on_fault: takes the errors of callbacks, and that failure; logs them by default.
    """

    failure: BaseException | None = None

    def __init__(self, spin_s: float = 0.0) -> None:
        super().__init__()
        self.turn = 0
        """Counts the driver's rounds; one round runs all that is due, then sleeps until more is."""
        self.spin_s = spin_s
        self.on_fault: OnFault = log_fault
        self._drive = allocate_lock()
        self.left_s = 0.0  # when the last driver left
        self._polling = False  # the driver may be asleep in the kernel
        self._num_woken = self._num_relieved = 0
        self._waiters: list[_Waiter] = []  # changed only by atomic list methods
        self._driving: Sleeper | None = None  # the sleeper of the driver
        self._local = local()
        self._closing = False
        self._deferred: BaseException | None = None
        self._background = Background(self)
        watch_forks(self)

    def start(self) -> None:
        """Start the background thread."""
        self._background.start()

    def close(self) -> None:
        """End the background thread and close the descriptors; callbacks no longer run."""
        if self._closing:
            return
        self._closing = True
        self._poke()
        self._background.wake()
        self._background.join()
        for waiter, _ in list(self._waiters):
            waiter.wake()
        with nullcontext() if self.driving else self._drive:
            self._epoll.close()
            self._wakeup.close()
        self._callbacks.clear()

    def fail(self, error: BaseException) -> None:
        """End because of *error*, unless it has ended: every wait raises `EngineFailed`. From any thread."""
        if not self._closing:
            self.failure, self._closing = error, True
            self.on_fault("the I/O engine of this process has failed", error)
            for waiter, _ in list(self._waiters):
                waiter.wake()

    def check_works(self) -> None:
        """Refuse use in a forked child, and after a failure.

        Raises:
            ForkedError: the engine belongs to the parent process.
            EngineFailed: it cannot go on.
        """
        self.check_own()
        if self.failure is not None:
            raise EngineFailed(summary_of(self.failure)) from self.failure

    def forked(self, parent: int) -> None:
        """Shut down in a forked child without touching what the *parent* still uses."""
        self.forked_from = parent
        if self._closing:
            return
        self._closing = True
        self._epoll.close()
        self._wakeup.close_unlocked()
        divert(self._callbacks)
        self._callbacks.clear()

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has failed."""
        return self._closing

    def _poke(self) -> None:
        self.check_own()  # first: in a forked child, the lock may be held by a thread that does not exist here
        try:
            self._wakeup.ring()
        except OSError as error:
            self.fail(error)

    # ---- driving ----

    def wait(
        self, ready: Callable[[], bool], timeout_s: float | None, *, lends: bool = False, whole: bool = False
    ) -> bool:
        """Drive, or wait while another thread drives, until *ready* or the time is over; return whether it is ready.

        A thread that makes *ready* true must call `wake_waiters` afterwards, which calls *ready* too: it must be cheap,
        take no lock that callers of `wake_waiters` hold, and change nothing.

        Args:
            lends: end early when a callback that this thread ran has woken another thread, which can drive; for
                threads that expect nothing soon: the busier one then gets its next message without a thread switch.
            whole: do not end early for a signal that an enclosing `undisturbed` defers.

        Raises:
            BaseException: what a signal handler raises, such as KeyboardInterrupt; no callback is interrupted by it.
            ForkedError: the engine belongs to the parent process.
            EngineFailed: the engine cannot go on.
        """
        if ready():
            return True
        self.check_own()
        assert not self.driving, "a callback of the engine must not wait for the engine"
        end_s = None if timeout_s is None else self.clock() + timeout_s
        sleeper = self._sleeper()
        if not sleeper.defers:
            return self._wait(ready, end_s, sleeper, lends, whole)
        while True:
            with sleeper:
                ended = self._wait(ready, end_s, sleeper, lends, whole)
                interrupted = sleeper.interrupted
            # If the handler returned, go on waiting; a signal that is still deferred is for the enclosing sleeper.
            if ended or not interrupted or sleeper.interrupted:
                return ended

    def undisturbed(self) -> ThreadSleeper:
        """A context in which no signal handler runs in this thread; for code that must not be left half done."""
        return self._sleeper()

    def _sleeper(self) -> ThreadSleeper:
        sleeper: ThreadSleeper | None = getattr(self._local, "sleeper", None)
        if sleeper is None:
            sleeper = self._local.sleeper = make_sleeper(self._wakeup.ring_unlocked)
        return sleeper

    def _wait(
        self, ready: Callable[[], bool], end_s: float | None, sleeper: ThreadSleeper, lends: bool, whole: bool
    ) -> bool:
        waiter, num_relieved = (sleeper, ready), self._num_relieved
        self._waiters.append(waiter)
        try:
            while not self._closing:
                if self._drive.acquire(blocking=False):
                    try:
                        ended = self._drive_until(ready, end_s, sleeper, lends, whole)
                        if ended or not self._closing:
                            return ended
                    except OSError as error:
                        if not is_fatal(error):
                            raise
                        self.fail(error)
                    finally:
                        self._leave(sleeper)
                if ready():
                    return True
                if sleeper.interrupted and not (whole and sleeper.nested):
                    return False
                left_s = None if end_s is None else min(end_s - self.clock(), _LONGEST_S)
                if left_s is not None and left_s <= 0:
                    return False
                if self.driver and self.driver == self._background.ident:
                    self._poke()
                sleeper.sleep(left_s)
                if ready():
                    return True
                if lends and self._num_relieved != num_relieved:
                    return False
            if ready():
                return True
            self.check_works()
            return False
        finally:
            self._waiters.remove(waiter)
            # The previous driver woke us to drive; if we need not wait, another thread must take over.
            if not self.driver and (self._background.asleep or self._waiters):
                self._wake_next(None)

    def wake_waiters(self) -> None:
        """Wake the waiting threads whose condition holds now; cheap when none waits."""
        waiters = self._waiters
        if waiters:
            own = getattr(self._local, "sleeper", None)
            if len(waiters) == 1 and waiters[0][0] is own:
                return  # the thread that drives itself, in a loop of calls
            for sleeper, ready in list(waiters):
                if sleeper is not own and holds(ready):
                    self.wake(sleeper)

    def relieve(self) -> None:
        """End each `rest`: the thread is needed elsewhere. One that begins at this moment may miss it."""
        self._num_woken, self._num_relieved = self._num_woken + 1, self._num_relieved + 1
        for sleeper, _ in list(self._waiters):
            sleeper.wake()
        self.call_soon(lambda: None)

    def wake(self, sleeper: Sleeper) -> None:
        """Wake a thread that sleeps here or elsewhere; from any other thread."""
        self._num_woken += 1
        if sleeper is not self._driving:
            sleeper.wake()
        elif self._polling:
            self._poke()

    def _drive_until(
        self, ready: Callable[[], bool], end_s: float | None, sleeper: ThreadSleeper, lends: bool, whole: bool
    ) -> bool:
        self.driver = get_ident()
        self._driving = sleeper
        left_s = -1.0
        num_woken = self._num_woken
        while not self._closing:
            if end_s is not None:
                left_s = min(end_s - self.clock(), _LONGEST_S)
                if left_s <= 0:
                    return ready()
            self._poll(left_s, ready)
            if self._deferred is not None:
                error, self._deferred = self._deferred, None
                raise error
            if ready():
                return True
            if (sleeper.interrupted and not (whole and sleeper.nested)) or (lends and self._num_woken != num_woken):
                return False
            sleeper.look()
        return False

    def _leave(self, sleeper: Sleeper | None) -> None:
        self.driver = 0
        self._driving = None
        self._drive.release()  # before anything that can raise, as every call of a Python function can
        self.left_s = self.clock()
        if self._background.asleep or len(self._waiters) > (sleeper is not None):
            self._wake_next(sleeper)

    def _wake_next(self, sleeper: Sleeper | None) -> None:
        """Wake one thread that can drive now, other than the owner of *sleeper*."""
        for other, _ in list(self._waiters):
            if other is not sleeper:
                other.wake()
                return
        if self._background.asleep:
            self._background.wake()

    def _poll(self, timeout_s: float, ready: Callable[[], bool] | None) -> None:
        """Run all that is due; if nothing is, sleep at most *timeout_s* seconds (-1: for ever)."""
        self.turn += 1
        soon = self._soon
        while soon:
            self._guard(soon.popleft())
        timers = self._timers
        if timers:
            now_s = self.clock()
            if now_s - timers[0][0] > STALE_S:
                # Deliver queued events first, or timers would judge peers by stale data.
                self._dispatch(self._events(0.0, ready))
            while timers and timers[0][0] <= now_s:
                self._guard(heapq.heappop(timers)[2].fire)
            if timers:
                next_s = min(max(timers[0][0] - now_s, 0.0), _LONGEST_S)
                timeout_s = next_s if timeout_s < 0 else min(timeout_s, next_s)
        if self._last:
            self._run_last()
        self._dispatch(self._events(timeout_s, ready))
        if self._last:
            self._run_last()

    def _run_last(self) -> None:
        while self._last:  # a callback may add another: its output must leave before the driver sleeps
            last, self._last = self._last, []
            for callback in last:
                self._guard(callback)

    def _dispatch(self, events: Sequence[tuple[int, int]]) -> None:
        for fd, mask in events:
            if fd == self._wakeup.fd:
                self._wakeup.clear()
                continue
            callback = self._callbacks.get(fd)
            if callback is not None:
                try:
                    callback(mask)
                except BaseException as error:  # noqa: BLE001 as in `_guard`, which would cost one more call
                    self.defer(error)

    def _events(self, timeout_s: float, ready: Callable[[], bool] | None) -> Sequence[tuple[int, int]]:
        if self.poller is not None:
            return self._query(self.poller, timeout_s, ready)
        if self.spin_s > 0:
            end_s = self.clock() + self.spin_s
            while self.clock() < end_s:
                events = self._epoll.poll(0, _MAX_EVENTS)
                if events or self._soon:
                    return events
        # From here on other threads ring the wakeup after a change; earlier changes are seen by this check.
        self._polling = True
        if self._soon or self._closing or (ready is not None and ready()):
            timeout_s = 0
        try:
            return self._epoll.poll(timeout_s, _MAX_EVENTS)
        finally:
            self._polling = False

    def _query(self, poller: Poller, timeout_s: float, ready: Callable[[], bool] | None) -> Sequence[tuple[int, int]]:
        self._polling = True
        try:
            if self._soon or self._closing or (ready is not None and ready()):
                timeout_s = 0.0
            events = poller.poll(self._epoll.fileno(), self.spin_s, timeout_s)
        finally:
            self._polling = False
        self._guard(poller.dispatch)
        return events

    def _guard(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except BaseException as error:  # noqa: BLE001 one broken callback must not stop the others' I/O
            self.defer(error)

    def defer(self, error: BaseException) -> None:
        """Report what a callback has raised; what a signal handler may have raised is re-raised by `wait`."""
        if may_be_signal(error):
            self._deferred = error
        else:
            self.on_fault("a callback of the I/O engine failed", error)

    def drive_alone(self) -> bool:
        """Drive until a thread waits; False if another thread drives. For the background thread."""
        if not self._drive.acquire(blocking=False):
            return False
        try:
            self.driver = get_ident()
            while not self._closing and not self._waiters:
                self._poll(-1, None)
        finally:
            self._leave(None)
        return True
