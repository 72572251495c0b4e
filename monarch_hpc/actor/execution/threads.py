"""The threads of a process's actors: one for each actor that has work, and a bounded number kept for idle ones.

An idle actor needs no thread: its next message finds one. But code on it may rely on its thread: CUDA's current device,
OpenMP's pool and SQLite's connections belong to one. So the threads of the actors that were busy last are kept for
them, up to a limit that only processes with very many actors exceed. Beyond the limit, the thread that was idle for
longest goes to the next actor that needs one, or ends. Where more actors wait than threads are kept, each thread goes
on with the next one itself: a switch to another thread takes longer than most endpoints.

The thread of the actor that was busy last drives the engine while it is idle, so that its next call runs on the thread
that reads it from the socket. When it reads a message for another actor instead, it wakes that actor's thread and
leaves the engine to it.
"""

from __future__ import annotations

import contextvars
import threading
from _thread import RLock, get_ident, get_native_id
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from monarch_hpc.actor.execution.thread_watch import ThreadWatch
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.engine.wakeup import Sleeper

__all__ = ["ActorThread", "ActorThreads", "Threaded"]


_RETRY_S = 0.05
"""Interval of attempts to find a thread where the process cannot have another one; threads of actors end or idle."""


class Threaded(ABC):
    """Runs on a thread while it has work.

    Attributes:
        name: the name of the thread.
        thread: the thread that runs it or is kept for it; None if it has none.
        waits: whether it waits for a thread.
        variables: its context variables: the same ones on any thread.
    """

    def __init__(self, threads: ActorThreads, name: str) -> None:
        self.name = name
        self.threads = threads
        self.thread: ActorThread | None = None
        self.waits = False
        self.variables = contextvars.Context()

    def wake(self) -> None:
        """Make `work` run, if something is `due`; from any thread."""
        thread = self.thread
        if thread is None:
            self.threads.engage(self)
        else:
            thread.wake()

    @property
    @abstractmethod
    def ended(self) -> bool:
        """Whether no work will ever be due again."""

    @abstractmethod
    def due(self) -> bool:
        """Whether there is work to do now; any thread may ask."""

    @abstractmethod
    def next_s(self) -> float | None:
        """Seconds until something is due by itself; None if nothing is."""

    @abstractmethod
    def work(self) -> None:
        """Do all that is due; raises nothing."""

    @abstractmethod
    def break_off(self, error: BaseException) -> None:
        """End: its thread has failed, or it has none because the process cannot have one."""


class ActorThread(threading.Thread):
    """A thread for actors.

    Attributes:
        runs: the actor that it runs, or is kept for.
        sent_for: whether it is on its way to the actors that wait for a thread.
        surplus: whether it is not counted any more, and shall end unless an actor waits.
        asleep: whether it sleeps outside of the engine, or is about to.
        in_engine: whether it waits in the engine, or is about to.
    """

    def __init__(self, threads: ActorThreads) -> None:
        super().__init__(name="actor", daemon=True)
        self.runs: Threaded | None = None
        self.sent_for = True
        self.surplus = False
        self._threads = threads
        self._engine = threads.engine
        self._own_ident = 0
        self._sleeper = Sleeper()
        self.asleep = False
        self.in_engine = False

    def run(self) -> None:
        """Run actors until none needs this thread."""
        self._own_ident = get_ident()
        threads = self._threads
        threads.note(self)
        while (actor := threads.take(self)) is not None:
            self.name = actor.name
            try:
                self._serve(actor)
            except BaseException as error:  # noqa: BLE001 no caller may wait for an actor whose thread was struck dead
                self.break_off(actor, error)
                threads.part(self)
            del actor  # nothing may keep an actor's object alive

    def break_off(self, actor: Threaded, error: BaseException) -> None:
        """End *actor*, whose thread has failed."""
        try:
            actor.variables.run(actor.break_off, error)
        except BaseException as worse:  # noqa: BLE001 what user code has broken is more than this actor
            self._engine.on_fault(f"{actor.name} cannot be ended", worse)

    def _bootstrap(self) -> None:  # in `threading` from Python 3.0 to 3.14; `run` comes after functions of the user
        try:
            super()._bootstrap()  # type: ignore[misc]  # not documented
        finally:
            if self.sent_for:  # a function of `threading.settrace` or `setprofile` has raised, and is not called again
                self.run()

    def _serve(self, actor: Threaded) -> None:
        """Run *actor* until it ends, or this thread is needed elsewhere."""
        threads, wait, watch = self._threads, self._engine.wait, self._threads.watch
        run, work, due, next_s = actor.variables.run, actor.work, actor.due, actor.next_s
        while True:
            if not watch.on:
                watch.start()
            run(work)
            if actor.ended:
                threads.part(self)
                return
            if threads.may_drive():
                self.in_engine = True
                try:
                    if wait(due, next_s(), lends=True):
                        continue
                finally:
                    self.in_engine = threads.driven = False
            if not threads.rest(self, actor):
                return

    def wake(self) -> None:
        """End the thread's sleep, in the engine or outside; no-op if it is awake. From any thread."""
        if get_ident() == self._own_ident:
            return
        if self.asleep:
            self._engine.wake(self._sleeper)
        elif self.in_engine:
            self._engine.wake_waiters()

    def sleep(self, ready: Callable[[], bool], timeout_s: float | None) -> None:
        """Sleep outside of the engine until woken, unless *ready*; at most *timeout_s* seconds."""
        self.asleep = True  # first: a thread that makes it ready after the check wakes this one
        try:
            if not ready() and not self._engine.closed:
                self._sleeper.sleep(timeout_s)
        finally:
            self.asleep = False

    def wait(self, ready: Callable[[], bool], timeout_s: float | None) -> bool:
        """Wait in the middle of an actor's work until *ready*; False if it timed out or the engine is closed."""
        if self._threads.drive:
            self.in_engine = True
            try:
                return self._engine.wait(ready, timeout_s)
            finally:
                self.in_engine = False
        clock = self._engine.clock
        end_s = None if timeout_s is None else clock() + timeout_s
        while not ready():
            left_s = None if end_s is None else end_s - clock()
            if self._engine.closed or (left_s is not None and left_s <= 0):
                return False
            self.sleep(ready, left_s)
        return True


class ActorThreads:
    """Gives actors threads, and takes them back.

    Args:
        drive: whether threads of idle actors drive the engine; False in a program, whose main thread drives it.
        keep: number of threads up to which each actor keeps its own.

    Attributes:
        driven: whether an idle thread drives the engine, or none may.
        watch: looks whether the threads that work are still there.
    """

    def __init__(self, engine: Engine, *, drive: bool, keep: int) -> None:
        self.engine = engine
        self.drive = drive
        self.driven = not drive
        self._keep = keep
        self._lock = RLock()
        self._num = 0
        self._waiting: deque[Threaded] = deque()
        self._idle: dict[ActorThread, None] = {}  # asleep, those that were busy last at the end
        self._coming: ActorThread | None = None  # on its way to `_waiting`; one at a time, and each sends for the next
        self._alive: dict[int, ActorThread] = {}  # threads by the kernel's id
        self.watch = ThreadWatch(engine, self._working, self._lose)
        self._short = False  # whether the process could not have another thread when it wanted one

    def engage(self, actor: Threaded) -> None:
        """Find a thread for *actor*, which has work; from any thread."""
        with self.engine.undisturbed():
            self._engage(actor)

    def _engage(self, actor: Threaded) -> None:
        with self._lock:
            thread = actor.thread
            if thread is None:
                if actor.waits:
                    return
                actor.waits = True
                self._waiting.append(actor)
        if thread is not None:
            thread.wake()
        else:
            self._send_one()

    def _send_one(self) -> None:
        """Send a thread to the actors that wait: the one that has been idle for longest, or another one."""
        lost: Threaded | None = None
        with self._lock:
            if self._coming is not None or not self._waiting:
                return
            idle = None
            if self._idle and self._num >= self._keep:
                idle, lost = self._take_away()
                thread = idle
            else:
                thread = ActorThread(self)
                self._num += 1
            thread.sent_for = True
            self._coming = thread
        if idle is not None:
            idle.wake()
        else:
            self._start(thread)
        self._settle(lost)

    def _start(self, thread: ActorThread) -> None:
        try:
            thread.start()
            self._short = False
        except Exception as error:  # noqa: BLE001 no threads left, memory is short, or `threading` is broken
            refused: list[Threaded] = []
            idle, lost = None, None
            with self._lock:
                self._num -= 1
                self._coming = None
                self._short = True
                if self._idle:
                    idle, lost = self._take_away()
                    idle.sent_for = True
                    self._coming = idle
                elif not self._num:
                    refused = list(self._waiting)
                    self._waiting.clear()
            if idle is not None:
                idle.wake()
            elif not refused:
                self.engine.relieve()  # the thread that drives may be idle
                self.engine.call_later(_RETRY_S, self._send_one)
            self._settle(lost)
            for actor in refused:
                actor.waits = False
                actor.break_off(error)

    def _take_away(self) -> tuple[ActorThread, Threaded | None]:
        """Take the thread that has been idle for longest from its actor; the caller holds the lock."""
        thread = next(iter(self._idle))
        del self._idle[thread]
        actor, thread.runs = thread.runs, None
        if actor is not None:
            actor.thread = None
        return thread, actor

    def _settle(self, actor: Threaded | None) -> None:
        """See to an actor that has lost its thread: work may have come meanwhile, or be due by itself later."""
        if actor is None or actor.ended:
            return
        if actor.due():
            self.engage(actor)
        elif (left_s := actor.next_s()) is not None:
            self.engine.call_later(left_s, actor.wake)

    # ---- threads that are ended in C ----

    def _working(self) -> list[int]:
        return [kernel_id for kernel_id, thread in list(self._alive.items()) if not (thread.asleep or thread.in_engine)]

    def _lose(self, kernel_id: int) -> None:
        """End the actor of a thread that is gone: on another one, as its clean-up runs user code."""
        with self._lock:
            thread = self._alive.pop(kernel_id, None)
            if thread is None:  # it has ended by itself meanwhile
                return
            self._num -= not thread.surplus
            actor = thread.runs
        if actor is not None:
            actor.variables = actor.variables.copy()  # the thread has entered the others for ever
            self._break_off(thread, actor)
        self._send_one()

    def _break_off(self, thread: ActorThread, actor: Threaded) -> None:
        def work() -> None:
            thread.break_off(actor, RuntimeError("the thread was ended by code in C, as pthread_exit does"))
            self.part(thread)

        try:
            Thread(work)
        except RuntimeError:  # no threads left
            self.engine.call_later(_RETRY_S, lambda: self._break_off(thread, actor))

    # ---- on the threads ----

    def note(self, thread: ActorThread) -> None:
        """Note that *thread* has started; called on it."""
        self._alive[get_native_id()] = thread

    def take(self, thread: ActorThread) -> Threaded | None:
        """Give *thread* the next actor that waits; None if none does, and the thread shall end."""
        with self._lock:
            if thread.sent_for:
                thread.sent_for = False
                self._coming = None
            self._num += thread.surplus
            thread.surplus = False
            actor = self._waiting.popleft() if self._waiting else None
            if actor is None:
                self._num -= 1
                self._alive.pop(get_native_id(), None)
                return None
            actor.waits = False
            actor.thread = thread
            thread.runs = actor
            more = bool(self._waiting)
        if more:
            self._send_one()
        return actor

    def part(self, thread: ActorThread) -> None:
        """Take *thread* from its actor, which has ended."""
        with self._lock:
            self._idle.pop(thread, None)
            if thread.runs is not None:
                thread.runs.thread = None
                thread.runs = None

    def may_drive(self) -> bool:
        """Whether an idle thread should drive the engine; if so, it sets `driven` back afterwards."""
        if self.driven or self._waiting:
            return False
        self.driven = True
        return True

    def rest(self, thread: ActorThread, actor: Threaded) -> bool:
        """Sleep outside of the engine until *actor* has work; False if *thread* is no longer its own."""
        lost = None
        with self._lock:
            if len(self._waiting) >= self._keep <= self._num:
                # So many wait that this one would be taken too before all are served: it goes on, and wakes no other.
                thread.runs = actor.thread = None
                lost = actor
            else:
                self._idle[thread] = None
                if (
                    self.engine.closed
                    or self._num > self._keep
                    or (self._waiting and (self._short or self._num == self._keep))
                ):
                    other, lost = self._take_away()
                    other.surplus = True
                    self._num -= 1
                    other.wake()
        self._settle(lost)
        thread.sleep(lambda: thread.runs is not actor or actor.due(), actor.next_s())
        with self._lock:
            self._idle.pop(thread, None)
            return thread.runs is actor
