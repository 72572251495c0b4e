"""The launch of a mesh of procs: what is asked of the mesh and of its actors meanwhile waits, and is done in order."""

from __future__ import annotations

import contextvars
import sys
import weakref
from _thread import RLock, get_ident
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime
from monarch_hpc.core.errors import SpawnError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.process.thread import Thread
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.plan import Started
from monarch_hpc.wire.frames import Buffer, copy_of

__all__ = ["DeferredSend", "Launch", "caller_line", "end_launches"]

T = TypeVar("T")

_Step = Callable[[SpawnError | None], None]
"""Something asked of a mesh while it starts: called with None once the procs are there, or with the failure."""

DeferredSend = Callable[[SpawnError | None, Sequence[Buffer]], None]
"""Sends a message with these buffers once the procs are there, or handles the failure."""

_log = Logger(__name__)

_unsettled: weakref.WeakSet[_State] = weakref.WeakSet()
"""The launches of this process that have not succeeded: they run, or have failed, perhaps without a caller's notice."""


class Launch(Mapping[int, ProcRef]):
    """The procs of a mesh by rank. Reading waits until all of them are there, and raises if the launch has failed.

    Every view of the mesh and of its actors holds it. If the last one is dropped while the procs start, and nothing
    was asked of them, they are stopped; a failure that nobody has seen is logged.

    Args:
        runtime: the runtime of the process.
        name: name of the mesh; may be empty.
        hosts: names of the hosts by rank of the proc.
        mesh: number of the mesh; 0 if it is not known before the procs run.
        where: the line that asked for the procs.
        stop: ends all procs of a mesh, see `mesh.door.ProgramDoor.stop_procs`.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        hosts: Sequence[str],
        mesh: int,
        where: str,
        stop: Callable[[int, str, str], Future[None]],
    ) -> None:
        self._hosts = hosts
        self._state = _State(runtime, name, mesh, where, stop)

    def __del__(self) -> None:
        state = self.__dict__.get("_state")
        if state is not None and not state.over and not state.runtime.engine.forked_from:
            state.runtime.engine.call_soon(state.drop)  # not here: this may run anywhere, under any lock

    def follow(self, started: Future[Started], prepare: Sequence[Callable[[Started], None]]) -> None:
        """Complete the launch once *started* is done and *prepare* has run; the latter on a thread of its own."""
        self._state.prepare = prepare
        started.add_done_callback(self._state.on_started)

    # ---- the procs ----

    def __getitem__(self, rank: int) -> ProcRef:
        return self._state.procs()[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._hosts)))

    def __len__(self) -> int:
        return len(self._hosts)

    def host(self, rank: int) -> str:
        """Name of the host of a proc; does not wait."""
        return self._hosts[rank]

    @property
    def mesh(self) -> int:
        """Number of the mesh; waits for it if necessary."""
        if not self._state.mesh:
            self._state.procs()
        return self._state.mesh

    @property
    def known_mesh(self) -> int:
        """Number of the mesh; 0 as long as it is not known."""
        return self._state.mesh

    def settle(self) -> Mapping[int, ProcRef]:
        """Wait for the procs, and until what was asked of them before has been sent; raises as reading them does.

        For references that leave this process: their receiver must not call an actor before its SPAWN is sent.
        """
        return self._state.settle()

    @property
    def opened(self) -> Mapping[int, ProcRef] | None:
        """The procs, once nothing waits any more; else None."""
        return self._state.opened

    # ---- what waits ----

    def check(self) -> None:
        """Raise the failure if the launch has failed already.

        Raises:
            SpawnError: it has.
        """
        if self._state.error is not None:
            self._state.procs()

    def defer(self, send: DeferredSend, body: bytes, buffers: Sequence[Buffer]) -> bool:
        """Have a message sent in its turn; False if the procs are there and nothing waits: then it can be sent now.

        If too much waits, this blocks as a full mailbox does.

        Args:
            send: runs in the present context; with the failure, at once if the launch has failed already. Gets copies
                of *buffers*, which are the caller's again on return; nothing is copied once the procs are there.
        """
        if self._state.opened is not None:
            return False
        copies = [copy_of(buffer) for buffer in buffers]
        return self._state.defer(lambda failure: send(failure, copies), len(body) + sum(map(len, copies)))

    def after(self, ask: Callable[[], Future[T]], waits_for: str) -> Future[T]:
        """The future that *ask* returns; or, while the procs start, one with the same outcome."""
        future: Future[T] = Future(self._state.runtime.engine, lambda: waits_for)

        def step(failure: SpawnError | None) -> None:
            if failure is not None:
                self._state.seen = True
                future.set_exception(failure)
                return
            try:
                ask().add_done_callback(partial(_copy, future))
            except BaseException as error:  # noqa: BLE001 raised to the reader of the future
                future.set_exception(error)

        return future if self._state.defer(step) else ask()

    def initialized(self) -> Future[Literal[True]]:
        """A future that is done with True once all procs are there and prepared, or fails as the launch does.

        What was asked of them before has been sent then, and what is asked later is sent at once.
        """
        state = self._state
        state.seen = True
        # The description holds the launch: it goes on for as long as someone waits for it.
        future: Future[Literal[True]] = Future(state.runtime.engine, lambda: f"the start of {self._state.words()}")
        state.settled.add_done_callback(partial(_copy, future))
        return future

    def stop(self, reason: str) -> Future[None]:
        """End the procs, also while they start."""
        return self._state.stop(reason)

    def note_seen(self) -> None:
        """Note that the failure reaches someone, so that it need not be logged."""
        self._state.seen = True


class _State:
    """The part of a launch that its callbacks hold, which does not keep the mesh alive."""

    def __init__(
        self, runtime: Runtime, name: str, mesh: int, where: str, stop: Callable[[int, str, str], Future[None]]
    ) -> None:
        self.runtime = runtime
        self.mesh = mesh
        self.prepare: Sequence[Callable[[Started], None]] = ()
        self.ready: Future[Mapping[int, ProcRef]] = Future(runtime.engine, lambda: f"the start of {self.words()}")
        self.settled: Future[Literal[True]] = Future(runtime.engine, lambda: f"the start of {self.words()}")
        self.error: SpawnError | None = None
        self.opened: Mapping[int, ProcRef] | None = None
        self.seen = False
        self._name = name
        self._where = where
        self._stop = stop
        self._lock = RLock()  # a signal handler may ask for something, too
        self._waiting: deque[_Step] = deque()
        self._num_bytes = 0
        self._sender = 0  # the thread that sends what waited
        self._expected = False  # someone has ended it
        self._reason = ""
        self._stops: list[Future[None]] = []  # asked for before the number was known
        _unsettled.add(self)

    @property
    def over(self) -> bool:
        """Whether nothing can be lost: it has succeeded, or its failure is known."""
        return self.opened is not None or (self.error is not None and (self.seen or self._expected))

    def words(self) -> str:
        """The mesh and the line that asked for it."""
        return f"{self._name or 'procs'} ({self._where})"

    def procs(self) -> Mapping[int, ProcRef]:
        """Wait for the procs.

        Raises:
            SpawnError: they did not start.
            RuntimeError: called on the thread that drives the I/O, or the process is ending.
        """
        engine = self.runtime.engine
        engine.check_own()
        if not self.ready.done():
            if engine.driving:
                raise RuntimeError("a done-callback must not wait for hosts or procs")
            if not engine.wait(self.ready.done, None) and not self.ready.done():
                raise RuntimeError("the process is ending")
        self.seen = True
        return self.ready.result()

    def settle(self) -> Mapping[int, ProcRef]:
        procs = self.procs()
        # What waits is sent by one thread, which may itself send references; the driver must not wait.
        if self._sender != get_ident() and not self.runtime.engine.driving:
            self.runtime.engine.wait(self.settled.done, None)
        return procs

    def defer(self, step: _Step, num_bytes: int = 0) -> bool:
        limit = self.runtime.node.limits.mailbox_bytes
        if self._num_bytes + num_bytes > limit and self._waiting and not self.runtime.engine.driving:
            self.runtime.engine.wait(lambda: not self._waiting, None)
        run = contextvars.copy_context().run
        with self._lock:
            if self.opened is not None:
                return False
            if self.error is None:
                self._waiting.append(lambda failure: run(step, failure))
                self._num_bytes += num_bytes
                return True
        step(self.error)
        return True

    def stop(self, reason: str) -> Future[None]:
        with self._lock:
            self._expected = True
            if not self.mesh and self.error is None:
                self._reason = reason
                future: Future[None] = Future(self.runtime.engine, lambda: f"the end of {self.words()}")
                self._stops.append(future)
                return future
        return self._stop(self.mesh, self._name, reason)

    def drop(self) -> None:
        """Handle the loss of the last reference to the mesh, or the end of the program."""
        _unsettled.discard(self)
        if self.error is None and self.opened is None:
            self.stop("nothing uses it any more")
        elif self.error is not None and not (self.seen or self._expected):
            self.seen = True
            _log.error("procs asked for at %s did not start, and nothing has used them: %s", self._where, self.error)

    # ---- the launch itself ----

    def on_started(self, done: Future[Started]) -> None:
        error = done.exception()
        if error is not None:
            self._fail(error)
            return
        started = done.result()
        with self._lock:
            self.mesh = started.mesh
            stops, self._stops = self._stops, []
        if stops:
            why = f": {self._reason}" if self._reason else ""
            self._fail(SpawnError("its hosts", f"it was stopped while it started{why}"))
            ended = self._stop(self.mesh, self._name, self._reason)
            for future in stops:
                ended.add_done_callback(partial(_copy, future))
        elif self.prepare or self._waiting:
            try:
                # On a thread: what waits may block, and what prepares the procs waits for them.
                Thread(partial(self._complete, started))
            except RuntimeError as refused:  # the process has no threads left, or the interpreter is ending
                self._fail(refused)
        else:
            self._open(started)

    def _complete(self, started: Started) -> None:
        try:
            for prepare in self.prepare:
                prepare(started)
        except BaseException as error:  # noqa: BLE001 raised to everyone who uses the procs
            ended = self._stop(started.mesh, self._name, "its bootstrap failed")
            failure = error
            ended.add_done_callback(lambda _ended: self._fail(failure))
            return
        self._open(started)

    def _open(self, started: Started) -> None:
        procs = self.runtime.incarnations.of(started.mesh, started.procs)
        self._sender = get_ident()
        self.ready.set_result(procs)
        while True:
            with self._lock:
                if not self._waiting:
                    self.opened = procs
                    break
                step = self._waiting.popleft()
            self._do(step, None)
            self.runtime.engine.wake_waiters()
        _unsettled.discard(self)
        self.settled.set_result(True)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, SpawnError):
            failure = SpawnError("its hosts", summary_of(error))
            failure.__cause__ = error
            error = failure
        error.add_note(f"the procs were asked for at {self._where}")
        with self._lock:
            self.error = error
            waiting, self._waiting = list(self._waiting), deque()
            stops, self._stops = self._stops, []
            if self.runtime.engine.closed:
                self._expected = True
        for step in waiting:
            self._do(step, error)
        self.ready.set_exception(error)
        self.settled.set_exception(error)
        for future in stops:
            future.set_result(None)

    def _do(self, step: _Step, failure: SpawnError | None) -> None:
        try:
            step(failure)
        except Exception as error:  # noqa: BLE001 what waits behind it must be done too
            _log.error("what was asked of %s while it started has failed: %s", self.words(), summary_of(error))


def end_launches() -> None:
    """Log the failures that no caller has seen, and expect what still starts to fail: the program ends its procs."""
    for state in list(_unsettled):
        state.drop()


def caller_line() -> str:
    """The line of the user's code that called into this package: ``FILE:LINE``."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "monarch_hpc":
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _copy(future: Future[T], done: Future[T]) -> None:
    error = done.exception()
    if error is None:
        future.set_result(done.result())
    else:
        future.set_exception(error)
