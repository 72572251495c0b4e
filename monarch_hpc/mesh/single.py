"""The answer of one actor: most calls are for one, and this is all that they make."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.payload import pack_call
from monarch_hpc.actor.runtime import Runtime
from monarch_hpc.core.errors import ActorDied, CallTimeout, MonarchError
from monarch_hpc.mesh.callee import Callee
from monarch_hpc.mesh.gather import CallOptions, is_result, read_answer
from monarch_hpc.wire.frames import Frame

__all__ = ["Single"]

R = TypeVar("R")


class Single(Future[R], Generic[R]):
    """The future of a call to one actor, and what waits for its answer, see `actor.pending.Pending`.

    Args:
        place: of the actor in the view.
    """

    def __init__(self, runtime: Runtime, callee: Callee, method: str, place: int, options: CallOptions) -> None:
        # Not the base's constructor either: a method of its own would keep the future alive until it is collected.
        self._engine = runtime.engine
        self._runtime = runtime
        self._callee = callee
        self._method = method
        self._place = place
        self._rank = rank = callee.ranks[place]
        self._options = options
        self.incarnation = callee.procs[rank].incarnation

    def send(self, head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Send the call; the time runs.

        Raises:
            Exception: it was not sent.
        """
        callee, options = self._callee, self._options
        body, buffers = pack_call(head, args, kwargs)
        if options.timeout_s is not None:
            self._runtime.deadlines.add(options.timeout_s, self)
        if callee.load is not None:
            callee.load.begin(self._rank)
        try:
            self._runtime.call(callee.procs[self._rank], callee.actor, body, buffers, self)
        except BaseException:
            self._done(died=False)
            raise

    @property
    def where(self) -> str:
        """The actor and the endpoint, in words."""
        return self._callee.where(self._method, self._place)

    def answer(self, given: Frame | MonarchError) -> None:
        """Take the answer."""
        if self._callee.load is not None or self._options.timeout_s is not None:
            self._done(died=isinstance(given, ActorDied))
        self._complete(given, not self._options.collects and not is_result(given))

    def expire(self) -> None:
        """The time is over."""
        late = CallTimeout(self.where, (), self._options.timeout_s or 0.0)
        self._complete(late, not self._options.collects)

    def _done(self, *, died: bool) -> None:
        if self._callee.load is not None:
            self._callee.load.end(self._rank, died=died)
        if self._options.timeout_s is not None:
            self._runtime.deadlines.remove(self._options.timeout_s, self)

    def _rebuild(self, raw: Any) -> R:
        value, failure = read_answer(raw)
        if failure is None:
            return cast(R, value)
        if self._options.collects:
            return cast(R, failure)
        raise failure

    def _waits_for(self) -> str:
        return f"{self._callee.name}.{self._method}" if self.done() else self.where
