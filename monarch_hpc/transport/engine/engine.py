"""The I/O engine of a process, driven by the threads that wait.

A thread that waits for a `Flag` polls the sockets itself, so that an answer reaches it without a thread switch. When
no thread waits, a background thread polls. At any moment at most one thread, the driver, runs callbacks: state that
only callbacks touch needs no lock.

The background thread does not take over the moment a driver leaves: in a loop of calls the next driver comes within
microseconds, and waking a thread in between would cost more than the call. It takes over after `_HANDBACK_S` without a
driver.
"""

from __future__ import annotations

import _thread
import heapq
import itertools
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.fork import Owned, divert, watch_forks
from monarch_hpc.core.text.description import trace_of
from monarch_hpc.transport.engine.interrupts import ThreadSleeper, make_sleeper, may_be_signal
from monarch_hpc.transport.engine.sources import Poller, Timer
from monarch_hpc.transport.engine.wakeup import Sleeper, Wakeup

__all__ = ["Engine"]

_HANDBACK_S = 0.002
"""Time without a driver after which the background thread takes over.

Longer than the gap between two calls of a loop, shorter than a person or a batch of work notices.
"""

_LONGEST_S = 86400.0
"""Longest sleep; then the time is checked again: epoll counts milliseconds in 31 bits, which are 24 days."""

_STALE_S = 0.1  # a timer this late shows that the process was stopped or starved
_MAX_EVENTS = 64  # in one round; select's own default allocates room for a thousand each time

_log = Logger(__name__)


class Engine(Owned):
    """Polls file descriptors and timers for all threads of a process.

    Args:
        spin_s: how long a driver polls without sleeping before it sleeps, in seconds; may be changed at any time.
    """

    def __init__(self, spin_s: float = 0.0) -> None:
        self.clock = time.monotonic
        self.turn = 0
        """Counts the driver's rounds; one round runs all that is due, then sleeps until more is."""
        self.spin_s = spin_s
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._soon: deque[Callable[[], None]] = deque()
        self._last: list[Callable[[], None]] = []
        self._wakeup = Wakeup()
        self._epoll.register(self._wakeup.fd, select.EPOLLIN)
        self._drive = _thread.allocate_lock()
        self._driver = 0  # thread id of the driver, 0 for none
        self._left_s = 0.0  # when the last driver left
        self._polling = False  # the driver may be asleep in the kernel
        self._poller: Poller | None = None
        self._waiters: list[Sleeper] = []  # changed only by atomic list methods
        self._local = threading.local()
        self._closing = False
        self._deferred: BaseException | None = None
        self._background_sleeper = Sleeper()
        self._background_asleep = False
        self._background: threading.Thread | None = None
        watch_forks(self)

    def start(self) -> None:
        """Start the background thread."""
        self._background = threading.Thread(target=self._run_background, name="monarch-engine", daemon=True)
        self._background.start()

    def close(self) -> None:
        """End the background thread and close the descriptors; callbacks no longer run."""
        if self._closing:
            return
        self._closing = True
        self._poke()
        self._background_sleeper.wake()
        if self._background is not None and self._background is not threading.current_thread():
            self._background.join()
        for waiter in list(self._waiters):
            waiter.wake()
        with nullcontext() if self.driving else self._drive:
            self._epoll.close()
            self._wakeup.close()
        self._callbacks.clear()

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
        """Whether `close` was called."""
        return self._closing

    @property
    def driving(self) -> bool:
        """Whether the calling thread is the driver, i.e. runs inside a callback."""
        return self._driver == _thread.get_ident()

    # ---- registering ----

    def watch(self, fd: int, callback: Callable[[int], None], *, read: bool = True, write: bool = False) -> None:
        """Call *callback* with the epoll event mask whenever *fd* is ready; replaces an earlier watch of *fd*."""
        mask = (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0)
        known = fd in self._callbacks
        self._callbacks[fd] = callback
        (self._epoll.modify if known else self._epoll.register)(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Stop watching *fd*; call this before closing the descriptor. Unknown descriptors are ignored."""
        if self._callbacks.pop(fd, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fd)

    def attach(self, poller: Poller) -> None:
        """Poll through *poller* from here on; call on the driver."""
        self._epoll.register(poller.fd, select.EPOLLIN)
        self._poller = poller

    def detach(self) -> None:
        """Stop polling through the poller; call on the driver, before the poller is closed."""
        if self._poller is not None:
            self._epoll.unregister(self._poller.fd)
            self._poller = None

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Run *callback* on the driver in *delay_s* seconds; from any thread."""
        timer = Timer(self.clock() + delay_s, callback)
        entry = (timer.at_s, next(self._order), timer)
        if self.driving:
            heapq.heappush(self._timers, entry)
        else:
            self.call_soon(lambda: heapq.heappush(self._timers, entry))
        return timer

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run *callback* on the driver as soon as possible; from any thread."""
        self._soon.append(callback)
        if not self.driving:
            self._poke()

    def at_end_of_turn(self, callback: Callable[[], None]) -> None:
        """Run *callback* after the callbacks that are due now, before the driver sleeps or leaves; from callbacks."""
        self._last.append(callback)

    def _poke(self) -> None:
        self.check_own()  # first: in a forked child, the lock may be held by a thread that does not exist here
        self._wakeup.ring()

    # ---- driving ----

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Drive, or wait while another thread drives, until *ready* or the time is over; return whether it is ready.

        A thread that makes *ready* true must call `wake_waiters` afterwards.

        Raises:
            KeyboardInterrupt: or any other exception that a handler of SIGINT raises; no callback is interrupted by it.
            ForkedError: the engine belongs to the parent process.
        """
        if ready():
            return True
        self.check_own()
        assert not self.driving, "a callback of the engine must not wait for the engine"
        end_s = None if timeout_s is None else self.clock() + timeout_s
        sleeper = self._sleeper()
        if not sleeper.defers_sigint:
            return self._wait(ready, end_s, sleeper)
        while True:
            with sleeper:
                ended = self._wait(ready, end_s, sleeper)
                interrupted = sleeper.interrupted
            # If the handler returned, go on waiting; a signal that is still deferred is for the enclosing sleeper.
            if ended or not interrupted or sleeper.interrupted:
                return ended

    def undisturbed(self) -> ThreadSleeper:
        """A context in which no SIGINT handler runs in this thread; for code that must not be left half done."""
        return self._sleeper()

    def _sleeper(self) -> ThreadSleeper:
        sleeper: ThreadSleeper | None = getattr(self._local, "sleeper", None)
        if sleeper is None:
            sleeper = self._local.sleeper = make_sleeper(self._wakeup.ring_unlocked)
        return sleeper

    def _wait(self, ready: Callable[[], bool], end_s: float | None, sleeper: ThreadSleeper) -> bool:
        self._waiters.append(sleeper)
        try:
            while not self._closing:
                if self._drive.acquire(blocking=False):
                    try:
                        return self._drive_until(ready, end_s, sleeper)
                    finally:
                        self._leave(sleeper)
                if ready():
                    return True
                if sleeper.interrupted:
                    return False
                left_s = None if end_s is None else min(end_s - self.clock(), _LONGEST_S)
                if left_s is not None and left_s <= 0:
                    return False
                if self._background is not None and self._driver == self._background.ident:
                    self._poke()
                sleeper.sleep(left_s)
                if ready():
                    return True
            return ready()
        finally:
            self._waiters.remove(sleeper)
            # The previous driver woke us to drive; if we need not wait, another thread must take over.
            if not self._driver and (self._background_asleep or self._waiters):
                self._wake_next(None)

    def wake_waiters(self) -> None:
        """Make waiting threads check their condition again; cheap when none waits."""
        waiters = self._waiters
        if waiters:
            own = getattr(self._local, "sleeper", None)
            if len(waiters) == 1 and waiters[0] is own:
                return  # the thread that drives itself, in a loop of calls
            if self._driver not in (0, _thread.get_ident()) and self._polling:
                self._poke()
            for sleeper in list(waiters):
                if sleeper is not own:
                    sleeper.wake()

    def _drive_until(self, ready: Callable[[], bool], end_s: float | None, sleeper: ThreadSleeper) -> bool:
        self._driver = _thread.get_ident()
        left_s = -1.0
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
            if sleeper.interrupted:
                return False
        return False

    def _leave(self, sleeper: Sleeper | None) -> None:
        self._driver = 0
        self._left_s = self.clock()
        self._drive.release()
        if self._background_asleep or len(self._waiters) > (sleeper is not None):
            self._wake_next(sleeper)

    def _wake_next(self, sleeper: Sleeper | None) -> None:
        """Wake one thread that can drive now, other than the owner of *sleeper*."""
        for other in list(self._waiters):
            if other is not sleeper:
                other.wake()
                return
        if self._background_asleep:
            self._background_sleeper.wake()

    def _poll(self, timeout_s: float, ready: Callable[[], bool] | None) -> None:
        """Run all that is due; if nothing is, sleep at most *timeout_s* seconds (-1: for ever)."""
        self.turn += 1
        soon = self._soon
        while soon:
            self._guard(soon.popleft())
        timers = self._timers
        if timers:
            now_s = self.clock()
            if now_s - timers[0][0] > _STALE_S:
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
        if self._poller is not None:
            return self._query(self._poller, timeout_s, ready)
        if self.spin_s > 0:
            end_s = self.clock() + self.spin_s
            while True:
                events = self._epoll.poll(0, _MAX_EVENTS)
                if events or self._soon:
                    return events
                if self.clock() >= end_s:
                    break
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
        """Log what a callback has raised; an exception that a signal handler may have raised is re-raised by `wait`."""
        if may_be_signal(error):
            self._deferred = error
        else:
            _log.error("a callback of the I/O engine failed:\n%s", trace_of(error))

    def _run_background(self) -> None:
        seen_left_s = -1.0
        while not self._closing:
            if self._driver:
                if self._left_s != seen_left_s:
                    # Drivers come and go, as in a loop of calls: check again later, so that none has to wake us.
                    seen_left_s = self._left_s
                    poller = self._poller
                    if poller is not None:
                        poller.wait_away()
                    else:
                        self._background_sleeper.sleep(_HANDBACK_S)
                    continue
                self._background_asleep = True
                if self._driver:
                    self._background_sleeper.sleep(None)
                self._background_asleep = False
                continue
            idle_s = self.clock() - self._left_s
            if idle_s < _HANDBACK_S or not self._drive.acquire(blocking=False):
                self._background_sleeper.sleep(_HANDBACK_S)
                continue
            try:
                self._driver = _thread.get_ident()
                while not self._closing and not self._waiters:
                    self._poll(-1, None)
            finally:
                self._leave(None)
