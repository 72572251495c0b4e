"""One call of an endpoint that a plain function call cannot serve: a coroutine, a time limit, or a later answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from monarch_hpc.actor.cell.cancellation import Due
from monarch_hpc.actor.cell.replies import ActorReplies, Ending, death_of, is_deadly
from monarch_hpc.actor.cell.response_port import AnswerTo, ResponsePort
from monarch_hpc.actor.context import set_caller
from monarch_hpc.actor.endpoint import EndpointMethod
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.errors import ActorDied, CallTimeout, PortClosed

if TYPE_CHECKING:
    from monarch_hpc.actor.execution.event_loop import Running

__all__ = ["Invocation"]


_BEHIND_S = 1.0
"""Time after the caller's deadline at which this side cancels a coroutine. The caller has the same deadline, sends
CANCEL when it expires, and names all late ranks in its error: an earlier answer from here would name only one."""


class Invocation:
    """Answers a call once, with whatever comes first: the result, the exception, or the time limit.

    Args:
        handling: records the end of the call, before the answer is sent; but never before the function has returned.
    """

    __slots__ = (
        "_answer_bytes",
        "_channel",
        "_due",
        "_endpoint",
        "_error",
        "_failed",
        "_handling",
        "_open",
        "_replies",
        "_returned",
        "_slot",
        "cancelled",
        "deadline_s",
        "running",
    )

    def __init__(
        self,
        replies: ActorReplies,
        channel: MessageLink,
        slot: int,
        endpoint: EndpointMethod[..., Any],
        due: Due | None,
        handling: Ending,
    ) -> None:
        self.cancelled = False
        self.deadline_s = None if due is None else due[0]
        """The caller's deadline, on the engine's clock; None if it set none."""
        self._due = due
        self.running: Running | None = None
        """The running coroutine, once there is one."""
        self._replies = replies
        self._channel = channel
        self._slot = slot
        self._endpoint = endpoint
        self._open = [slot]  # pop() is atomic
        self._handling = handling
        self._returned = False
        self._failed = False
        self._answer_bytes = self._error = 0

    async def perform(self, function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Run the coroutine; raises nothing."""
        import asyncio

        replies = self._replies
        set_caller(self)
        limit_s = self._endpoint.timeout_s
        if self.deadline_s is not None:
            left_s = max(self.deadline_s - replies.engine.clock(), 0.0) + _BEHIND_S
            limit_s = left_s if limit_s is None else min(left_s, limit_s)
        try:
            try:
                async with asyncio.timeout(limit_s) as limit:
                    value = await function(*self._with_port(args), **kwargs)
            finally:
                self._returned = True
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not (replies.cause or self.cancelled or (task is not None and task.cancelling())):
                self._fail(error)  # not a cancellation: the endpoint raised it
                return
            cause = replies.cause or f"a call of {self._endpoint.__name__} was cancelled there"
            self.refuse(ActorDied(replies.where, death_of(cause)), raised=False)
        except BaseException as error:  # noqa: BLE001 user code; reported to the caller
            if limit.expired() and issubclass(type(error), TimeoutError):
                self._time_out()
            else:
                self._fail(error)
        else:
            self._return(value)
        finally:
            self._record()

    def cancel(self) -> None:
        """Cancel the coroutine at the request of its caller; from any thread."""
        self.cancelled = True
        if self.running is not None:
            self.running.cancel()

    def call(self, function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call a function. It cannot be interrupted: on timeout the caller gets an error while it still runs."""
        timer = None
        if self._endpoint.timeout_s is not None:
            timer = self._replies.engine.call_later(self._endpoint.timeout_s, self._time_out)
        try:
            try:
                value = function(*self._with_port(args), **kwargs)
            finally:
                self._returned = True
        except BaseException as error:  # noqa: BLE001 user code; reported to the caller
            self._fail(error)
        else:
            self._return(value)
        finally:
            if timer is not None:
                timer.cancel()
            self._record()

    def _with_port(self, args: tuple[object, ...]) -> tuple[object, ...]:
        if not self._endpoint.explicit:
            return args
        if self._slot:
            self._replies.unanswered.add(self)
        if args and type(args[0]) is AnswerTo:
            return (ResponsePort(self, args[0].port), *args[1:])
        return (ResponsePort(self), *args)

    def _return(self, value: object) -> None:
        if not self._endpoint.explicit:
            self.succeed(value)

    def _claim(self) -> bool:
        try:
            self._open.pop()
        except IndexError:
            return False
        self._replies.unanswered.discard(self)
        return True

    def succeed(self, value: object) -> None:
        """Answer with *value*, unless the call is answered already."""
        if self._claim() and self._slot:
            self._replies.succeed(self._channel, self._slot, self._endpoint.__name__, value, self)

    def refuse(self, error: BaseException, *, raised: bool = True) -> None:
        """Answer with *error*, unless the call is answered already; unlike `_fail`, drop it if no answer is wanted."""
        if self._claim() and self._slot:
            self._replies.fail(self._channel, self._slot, self._endpoint.__name__, error, self, raised=raised)

    def _fail(self, error: BaseException, *, raised: bool = True) -> None:
        slot = self._slot
        if not self._claim():
            if not (self._endpoint.explicit or is_deadly(error)):
                return
            slot = 0  # already answered, and no call would report this error
        if is_deadly(error):
            self._replies.die(self._channel, slot, self._endpoint.__name__, error, self)
        else:
            self._replies.fail(self._channel, slot, self._endpoint.__name__, error, self, raised=raised)

    # ---- telemetry ----

    def end(self, num_bytes: int, /) -> None:
        """Record that a result of *num_bytes* bytes is about to be sent."""
        self._answer_bytes = num_bytes
        if self._returned:
            self._record()

    def fail(self, error: int, /) -> None:
        """Record that an exception is about to be sent, or would be if the call wanted an answer."""
        self._error = error
        self._failed = True
        if self._returned:
            self._record()

    def _record(self) -> None:
        # Once, when the function has returned: the answer may still come later.
        if self._failed:
            self._handling.fail(self._error)
        else:
            self._handling.end(self._answer_bytes)

    def drop(self) -> None:
        """Answer with `PortClosed` because the response port was garbage-collected: no call may wait forever."""
        if self._open:
            error = PortClosed(
                f"the response port of {self._endpoint.__name__} of {self._replies.where}",
                "it was dropped without an answer",
            )
            # Not from the garbage collector: the current thread may hold any lock.
            self._replies.engine.call_soon(lambda: self.refuse(error))

    def _time_out(self) -> None:
        if self._due is not None and self._replies.engine.clock() >= self._due[0]:
            where = f"{self._replies.where}, endpoint {self._endpoint.__name__}"
            self._fail(CallTimeout(where, (), self._due[1]), raised=False)
            return
        limit_s = self._endpoint.timeout_s
        self._fail(TimeoutError(f"endpoint {self._endpoint.__name__} took longer than its timeout of {limit_s:g} s"))
