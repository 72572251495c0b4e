"""Futures of what is done to memory of another process: transfers, changes of numbers, and the end of the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from monarch_hpc.actor.context import context
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.line import ProcLink
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.clock import monotonic_ns
from monarch_hpc.core.errors import ChannelClosed, MemoryAccessError, PeerLost, TransportError
from monarch_hpc.transport.memory.peer import Answered, MemoryPeer
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["AskUse", "MoveUse", "RemoteUse", "after", "record_waits"]

T = TypeVar("T")

_GRACE_S = 0.5
"""Time after its deadline in which a transfer that cannot be stopped may still end, before its peer is given up."""


def record_waits(future: Future[Any], runtime: Runtime, what: str) -> None:
    """Let `monarch-hpc status --calls` show those who wait for *future*, as waiting for *what*, one of few texts."""
    recorder = runtime.recorder
    future.watch(recorder, lambda: (-recorder.names.text(what), context().mark))


class RemoteUse(Future[None]):
    """Something done to memory of another process, or of this one; begins at `begin`.

    Its outcome comes when no transfer can touch local memory any more, also after a timeout or a cancellation.

    Args:
        proc: the owner of the memory.
        what: describes it, for errors.
        timeout_s: its time limit in seconds; None for none.
    """

    def __init__(self, runtime: Runtime, proc: ProcRef, what: str, timeout_s: float | None) -> None:
        super().__init__(runtime.engine, lambda: what)
        # One text for all transfers with a process: the table of names is small.
        record_waits(self, runtime, f"memory of rank {proc.rank} on {proc.host}")
        self._runtime = runtime
        self._proc = proc
        self._what = what
        self._timeout_s = timeout_s
        self._link: ProcLink | None = None
        self._late = False
        self._unwanted = False

    def watch_too(self, future: Future[Any]) -> None:
        """Record waits for *future* as those for this one."""
        future.watch(self._runtime.recorder, self._calls)

    def begin(self) -> None:
        """Do it; from any thread."""
        self._runtime.connections.reach(self._proc, self._reached)
        if self._timeout_s is not None and not self.done():
            self._runtime.deadlines.add(self._timeout_s, self)
            if self.done():  # meanwhile
                self._forget_limit()

    def _reached(self, link: ProcLink | TransportError) -> None:
        if self.done() or self._late or self._unwanted:
            self._over(None)
        elif isinstance(link, TransportError):
            self._over(link)
        else:
            self._link = link
            try:
                self._start(link)
            except Exception as error:  # noqa: BLE001 such as an array that was resized meanwhile: raised to the reader
                self._forget_limit()
                self.set_exception(error)

    def _start(self, link: ProcLink) -> None:
        """Do it through *link*."""
        raise NotImplementedError

    def _stop(self) -> bool:
        """Try to stop it; on the driver. Return whether it has ended, so that no local memory is touched any more."""
        raise NotImplementedError

    def _over(self, error: BaseException | None) -> None:
        """Take the outcome; on the driver, or before `begin` returns."""
        self._forget_limit()
        if self._late and error is not None:
            self.set_exception(self._timed_out())
        elif self._unwanted and error is not None:
            super().cancel()
        elif isinstance(error, PeerLost | ChannelClosed):
            self._runtime.causes.explain(self._proc.incarnation, self._what, error, self.set_exception)
        elif error is not None:
            self.set_exception(error)
        elif self._link is None:
            if self._late:
                self.set_exception(self._timed_out())
            else:
                super().cancel()
        else:
            self.set_result(None)

    def _timed_out(self) -> TimeoutError:
        return TimeoutError(f"not done after {self._timeout_s:g} s: {self._what}")

    def _forget_limit(self) -> None:
        if self._timeout_s is not None:
            self._runtime.deadlines.remove(self._timeout_s, self)

    def expire(self) -> None:
        """Handle the timeout; on the driver."""
        self._late = True
        self._end_early()

    def cancel(self) -> bool:
        """Stop it; return whether it has been cancelled already. If not, it ends as soon as it can be stopped."""
        if not self.done():
            self._unwanted = True
            self._engine.call_soon(self._end_early)
        return self.cancelled()

    def _end_early(self) -> None:
        if self.done() or (self._link is not None and self._stop()):
            return
        if self._link is None:  # still connecting
            self._over(None)
        else:
            self._engine.call_later(_GRACE_S, self._give_up_peer)

    def _give_up_peer(self) -> None:
        give_up: Callable[[str], None] | None = getattr(self._link, "give_up", None)
        if not self.done() and give_up is not None:
            give_up(f"it did not end in time: {self._what}")


class MoveUse(RemoteUse):
    """A transfer, or several, between local memory and memory of *proc*, which *move* starts.

    Args:
        identifier: of the memory, or the first of several.
        num_bytes: of all of them.
        write: whether bytes are written there.
    """

    def __init__(
        self,
        runtime: Runtime,
        proc: ProcRef,
        what: str,
        timeout_s: float | None,
        move: Callable[[MemoryPeer], Transfer],
        identifier: bytes,
        num_bytes: int,
        *,
        write: bool,
    ) -> None:
        super().__init__(runtime, proc, what, timeout_s)
        self._move = move
        self._transfer: Transfer | None = None
        self._identifier = identifier
        self._num_bytes = num_bytes
        self._write = write
        self._began_ns = 0

    def _start(self, link: ProcLink) -> None:
        self._began_ns = monotonic_ns()
        transfer = self._transfer = self._move(link.memory)
        if transfer.done:
            self._ended(link, transfer.error)
        else:
            transfer.on_done(lambda _transfer: self._ended(link, transfer.error))

    def _ended(self, link: ProcLink, error: TransportError | None) -> None:
        recorder, proc = self._runtime.recorder, self._proc
        path = link.memory.path(self._identifier) or getattr(link, "fabric", "")
        peer = link.mark or recorder.names.proc(proc.incarnation, proc.host)
        took_ns = monotonic_ns() - self._began_ns
        recorder.moved(path, peer, self._num_bytes, took_ns, write=self._write, failed=error is not None)
        self._over(error)

    def _stop(self) -> bool:
        assert self._transfer is not None
        return self._transfer.stop(MemoryAccessError("its owner", "the transfer was given up"))


class AskUse(RemoteUse):
    """A request to the owner, which *ask* sends; *take* gets the answer."""

    def __init__(
        self,
        runtime: Runtime,
        proc: ProcRef,
        what: str,
        timeout_s: float | None,
        ask: Callable[[MemoryPeer, Answered], None],
        take: Callable[[bytes], object] = lambda _answer: None,
    ) -> None:
        super().__init__(runtime, proc, what, timeout_s)
        self._ask = ask
        self._take = take

    def _start(self, link: ProcLink) -> None:
        self._ask(link.memory, self._answered)

    def _answered(self, answer: bytes | TransportError) -> None:
        if self.done():
            return
        if isinstance(answer, TransportError):
            self._over(answer)
        else:
            self._take(answer)
            self._over(None)

    def _stop(self) -> bool:
        self._over(MemoryAccessError("its owner", "the request was given up"))
        return True


def after(use: RemoteUse, what: str, value: Callable[[], T]) -> Future[T]:
    """A future of what *value* returns once *use* is done; it fails as *use* does. To cancel it cancels *use*."""

    def give_up() -> None:
        use.cancel()

    future: Future[T] = Future(current_runtime().engine, lambda: what, give_up)
    use.watch_too(future)

    def done(_use: Future[None]) -> None:
        if use.cancelled():
            return
        error = use.exception()
        if error is None:
            future.set_result(value())
        else:
            future.set_exception(error)

    use.add_done_callback(done)
    return future
