"""One call of an endpoint that is more than a function call: a coroutine, or limited in time, or answering later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from monarch_hpc.actor.cell.cancellation import Due
from monarch_hpc.actor.cell.event_loop import Running
from monarch_hpc.actor.cell.replies import Ending
from monarch_hpc.actor.context import set_caller
from monarch_hpc.actor.endpoint import EndpointMethod
from monarch_hpc.actor.messages.line import MessageLink
from monarch_hpc.core.errors import ActorDied, CallTimeout, PortClosed
from monarch_hpc.transport.engine.engine import Engine

__all__ = ["Invocation", "InvocationCell", "ResponsePort"]


_BEHIND_S = 1.0
"""How long after its caller's time limit a coroutine is cancelled from here. The caller counts the same time, tells us
when it is over, and knows of all ranks that are late: an answer of ours that came before would name but one."""


class InvocationCell(Protocol):
    """What a turn needs of its actor."""

    engine: Engine
    where: str
    ending: bool

    def succeed(self, channel: MessageLink, slot: int, method: str, value: object, ending: Ending) -> None:
        """Give a caller the result."""
        ...

    def fail(self, channel: MessageLink, slot: int, method: str, error: BaseException, ending: Ending) -> None:
        """Give a caller the exception; where nobody waits, the actor dies of it."""
        ...

    def exit_process(self, leaving: SystemExit) -> None:
        """End the process."""
        ...


class Invocation:
    """Answers once, whatever comes first: the result, the exception, or the end of the time.

    Args:
        handling: its end is written down before the answer is sent; but while the function goes on, it does.
    """

    __slots__ = (
        "_answer_bytes",
        "_cell",
        "_channel",
        "_due",
        "_endpoint",
        "_failed",
        "_handling",
        "_open",
        "_returned",
        "_slot",
        "cancelled",
        "deadline_s",
        "running",
    )

    def __init__(
        self,
        cell: InvocationCell,
        channel: MessageLink,
        slot: int,
        endpoint: EndpointMethod[..., Any],
        due: Due | None,
        handling: Ending,
    ) -> None:
        self.cancelled = False
        self.deadline_s = None if due is None else due[0]
        """When the caller gives up, on the engine's clock."""
        self._due = due
        self.running: Running | None = None
        """The coroutine, once it is one."""
        self._cell = cell
        self._channel = channel
        self._slot = slot
        self._endpoint = endpoint
        self._open = [slot]  # pop() is atomic
        self._handling = handling
        self._returned = False
        self._failed = False
        self._answer_bytes = 0

    async def perform(self, function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Run the coroutine; raises nothing."""
        cell = self._cell
        set_caller(self)
        limit_s = self._endpoint.timeout_s
        if self.deadline_s is not None:
            left_s = max(self.deadline_s - cell.engine.clock(), 0.0) + _BEHIND_S
            limit_s = left_s if limit_s is None else min(left_s, limit_s)
        try:
            try:
                async with asyncio.timeout(limit_s) as limit:
                    value = await function(*self._with_port(args), **kwargs)
            finally:
                self._returned = True
        except SystemExit as leaving:
            cell.exit_process(leaving)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if not (cell.ending or self.cancelled or (task is not None and task.cancelling())):
                self._fail(error)  # nobody cancelled it: the endpoint raised it
                return
            cause = "it was stopped" if cell.ending else f"a call of {self._endpoint.__name__} was cancelled there"
            self.refuse(ActorDied(cell.where, cause))
        except BaseException as error:  # noqa: BLE001 user code; the caller is told
            self._fail(self._too_slow() if limit.expired() and issubclass(type(error), TimeoutError) else error)
        else:
            self._return(value)
        finally:
            self._record()

    def cancel(self) -> None:
        """Cancel the coroutine: its caller waits no longer; from any thread."""
        self.cancelled = True
        if self.running is not None:
            self.running.cancel()

    def call(self, function: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Call a function, which nothing can interrupt; when its time is over, its caller waits no longer."""
        timer = None
        if self._endpoint.timeout_s is not None:
            timer = self._cell.engine.call_later(self._endpoint.timeout_s, lambda: self._fail(self._too_slow()))
        try:
            try:
                value = function(*self._with_port(args), **kwargs)
            finally:
                self._returned = True
        except SystemExit as leaving:
            self._cell.exit_process(leaving)
        except BaseException as error:  # noqa: BLE001 user code; the caller is told
            self._fail(error)
        else:
            self._return(value)
        finally:
            if timer is not None:
                timer.cancel()
            self._record()

    def _with_port(self, args: tuple[object, ...]) -> tuple[object, ...]:
        return (ResponsePort(self), *args) if self._endpoint.explicit else args

    def _return(self, value: object) -> None:
        if not self._endpoint.explicit:
            self.succeed(value)

    def _claim(self) -> bool:
        try:
            self._open.pop()
        except IndexError:
            return False
        return True

    def succeed(self, value: object) -> None:
        """Answer with *value*, if there was no answer yet."""
        if self._claim() and self._slot:
            self._cell.succeed(self._channel, self._slot, self._endpoint.__name__, value, self)

    def refuse(self, error: BaseException) -> None:
        """Answer with *error*, if there was no answer yet; that nobody waits for it is no failure."""
        if self._claim() and self._slot:
            self._cell.fail(self._channel, self._slot, self._endpoint.__name__, error, self)

    def _fail(self, error: BaseException) -> None:
        if self._claim():
            self._cell.fail(self._channel, self._slot, self._endpoint.__name__, error, self)
        elif self._endpoint.explicit:  # the answer was given, and nobody else reports what came after
            self._cell.fail(self._channel, 0, self._endpoint.__name__, error, self)

    # ---- what is written down ----

    def end(self, num_bytes: int, /) -> None:
        """A result of so many bytes is about to be sent."""
        self._answer_bytes = num_bytes
        if self._returned:
            self._record()

    def fail(self, num_bytes: int, /) -> None:
        """An exception of so many bytes is; or none, where nobody waits."""
        self._answer_bytes = num_bytes or self._answer_bytes
        self._failed = True
        if self._returned:
            self._record()

    def _record(self) -> None:
        # Once, when the function is over: what it has not answered it may answer later.
        (self._handling.fail if self._failed else self._handling.end)(self._answer_bytes)

    def drop(self) -> None:
        """Whoever was to answer is gone: no call waits for ever."""
        if self._open:
            error = PortClosed(
                f"the response port of {self._endpoint.__name__} of {self._cell.where}",
                "it was dropped without an answer",
            )
            # Not from here, where objects are collected: the thread may hold any lock.
            self._cell.engine.call_soon(lambda: self.refuse(error))

    def _too_slow(self) -> TimeoutError:
        if self._due is not None and self._cell.engine.clock() >= self._due[0]:
            return CallTimeout(f"{self._cell.where}, endpoint {self._endpoint.__name__}", (), self._due[1])
        return TimeoutError(
            f"endpoint {self._endpoint.__name__} took longer than its timeout of {self._endpoint.timeout_s:g} s"
        )


class ResponsePort:
    """Where an endpoint with `explicit_response_port` gives its answer, when it likes and from any thread.

    The first answer counts. It stays in its process; a `Port` may travel.
    """

    __slots__ = ("_invocation",)

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation

    def send(self, value: object) -> None:
        """Answer with *value*."""
        self._invocation.succeed(value)

    def exception(self, error: BaseException) -> None:
        """Answer with an exception, which is raised at the caller."""
        self._invocation.refuse(error)

    def __del__(self) -> None:
        self._invocation.drop()

    def __reduce__(self) -> str:
        raise TypeError("a response port answers from its own process: send a port of Channel.open() instead")
