"""The future of a call to one actor; the common case, so it allocates one object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

from monarch_hpc.actor.context import deadlines_seen
from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.payload import pack_call
from monarch_hpc.actor.runtime.runtime import HELD, Runtime
from monarch_hpc.core.errors import ActorDied, MonarchError, SpawnError
from monarch_hpc.mesh.calls.answer import CallOptions, is_result, late, read_answer
from monarch_hpc.mesh.calls.callee import Callee
from monarch_hpc.wire.frames import Buffer, Frame

__all__ = ["FoldedCall", "SingleCall"]

R = TypeVar("R")


class SingleCall(Future[R], Generic[R]):
    """The future of a call to one actor, and at the same time the call's `actor.messages.pending.Pending`.

    Args:
        place: rank of the actor in the view.
    """

    _number = HELD
    _limit_s: float | None = None
    incarnation = 0

    def __init__(self, runtime: Runtime, callee: Callee, method: str, place: int, options: CallOptions) -> None:
        # Without the constructor of `Future`: a bound method as attribute would be a reference cycle, which keeps the
        # future alive until it is garbage-collected.
        self._engine = runtime.engine
        self._runtime = runtime
        self._callee = callee
        self._method = method
        self._place = place
        self._rank = callee.ranks[place]
        self._options = options

    def send(self, head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Send the call and start its time limit.

        Raises:
            Exception: the call was not sent.
        """
        callee, options = self._callee, self._options
        body, buffers = pack_call(head, args, kwargs)
        runtime = self._runtime
        end_s = None
        if options.timeout_s is not None or deadlines_seen():
            limit_s = self._limit_s = options.limit_s(runtime.engine.clock)
            if limit_s is not None:
                end_s = runtime.engine.clock() + limit_s
                runtime.deadlines.add(limit_s, self)
        if callee.load is not None:
            callee.load.begin(self._rank)
        if callee.launch is not None and callee.defer(
            lambda failure, copies: self._send_later(failure, body, copies, end_s), body, buffers
        ):
            return
        self._send(body, buffers, end_s)

    def _send(self, body: bytes, buffers: Sequence[Buffer], end_s: float | None) -> None:
        callee = self._callee
        proc = callee.procs[self._rank]
        self.incarnation = proc.incarnation
        try:
            self._number = self._runtime.call(
                proc, callee.actor, body, buffers, self, end_s, end_s, callee.name_of(self._method)
            )
        except BaseException:
            self._done()
            raise
        if self._number == HELD and callee.load is not None:
            callee.load.end(self._rank)

    def _send_later(
        self, failure: SpawnError | None, body: bytes, buffers: Sequence[Buffer], end_s: float | None
    ) -> None:
        if self.done():  # it has timed out, or was cancelled, while the procs started
            self._done()
        elif failure is not None:
            self._callee.note_seen()
            self.answer(failure)
        else:
            try:
                self._send(body, buffers, end_s)
            except BaseException as error:  # noqa: BLE001 raised to the reader
                self.set_exception(error)

    def _begin_wait(self) -> int:
        # A call that was held back is not answered: its time ends.
        number = self._number if self._number != HELD else 0
        return self._runtime.recorder.wait(number, number)

    def _end_wait(self, place: int) -> None:
        self._runtime.recorder.waited(place)

    @property
    def where(self) -> str:
        """The actor and the endpoint, in words."""
        return self._callee.where(self._method, self._place)

    def answer(self, given: Frame | MonarchError) -> None:
        """Complete the future with the answer."""
        if self._callee.load is not None or self._limit_s is not None:
            self._done(self.incarnation if isinstance(given, ActorDied) else 0)
        self._complete(given, not self._options.collects and not is_result(given))

    def expire(self) -> None:
        """Fail the future: the time limit has passed."""
        held = (self._place,) if self._number == HELD else ()
        if self._complete(late(self.where, (), self._limit_s, held), not self._options.collects):
            self._give_up()

    def _give_up(self) -> None:
        if self._number != HELD:
            self._runtime.cancel(self._callee.actor, (self._number,))

    def _done(self, died: int = 0) -> None:
        if self._callee.load is not None:
            self._callee.load.end(self._rank, died)
        if self._limit_s is not None:
            self._runtime.deadlines.remove(self._limit_s, self)

    def _rebuild(self, raw: Any) -> R:
        value: R
        value, failure = read_answer(raw)
        if failure is None:
            landing = self._options.landing
            return value if landing is None else cast(R, landing.take(value, self.where))
        if self._options.collects:
            return cast(R, failure)
        raise failure

    def _waits_for(self) -> str:
        return f"{self._callee.name}.{self._method}" if self.done() else self.where


class FoldedCall(SingleCall[R], Generic[R]):
    """The future of what *finish* returns for the answer of one actor; it takes the result, and its failure or None."""

    def __init__(
        self,
        runtime: Runtime,
        callee: Callee,
        method: str,
        options: CallOptions,
        finish: Callable[[Any, BaseException | None], R],
    ) -> None:
        super().__init__(runtime, callee, method, 0, options)
        self._finish = finish

    def _rebuild(self, raw: Any) -> R:
        return self._finish(*read_answer(raw))
