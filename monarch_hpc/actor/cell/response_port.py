"""The port through which an endpoint with `explicit_response_port` answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from monarch_hpc.actor.context import context
from monarch_hpc.core.arguments import check_instance
from monarch_hpc.wire.serializer import when_serialized

__all__ = ["AnswerTo", "Answered", "ResponsePort"]


class Answered(Protocol):
    """A call that waits for an answer, see `actor.cell.invocation.Invocation`."""

    def succeed(self, value: object) -> None:
        """Answer with *value*, unless the call is answered already."""
        ...

    def refuse(self, error: BaseException, *, raised: bool = True) -> None:
        """Answer with *error*, unless the call is answered already; see `actor.messages.payload.send_failure`."""
        ...

    def drop(self) -> None:
        """Answer that no answer will come, unless the call is answered already."""
        ...


class AnswerTo:
    """First argument of a call whose response port is a port of the caller, see `mesh.calls.send`.

    Args:
        port: an `actor.ports.port.Port`.
    """

    def __init__(self, port: Any) -> None:
        self.port = port


class ResponsePort:
    """Answers one call, at any time and from any thread.

    It may be sent in messages, but not pickled otherwise; what arrives answers likewise, as long as the actor that sent
    it lives. A call takes the first answer, but if the caller gave a port to `send`, all answers go to that port.

    Args:
        call: the call.
        port: the caller's port, with the methods of `Port`; None if the call takes one answer.
    """

    __slots__ = ("_call", "_forwarded", "_passed_on", "_port", "_rank")

    def __init__(self, call: Answered, port: Any = None) -> None:
        self._call = call
        self._forwarded: tuple[Any, Callable[[], None]] | None = None  # see `pass_on`
        self._passed_on = False
        self._port = port
        self._rank = -1 if port is None else context().message_rank.rank

    def send(self, value: object) -> None:
        """Answer with *value*."""
        if self._port is None:
            self._call.succeed(value)
        else:
            self._port.send_as(self._rank, value)
            self._call.succeed(None)  # ends the call; the answers go their own way

    def exception(self, error: BaseException) -> None:
        """Answer with an exception, which is raised at the caller.

        Raises:
            TypeError: *error* is not an exception; the call is not answered.
        """
        # Before the call counts as answered: it must be answerable after the error.
        check_instance("error", error, BaseException, "an exception, such as ValueError('why')")
        if self._port is None:
            self._call.refuse(error)
        else:
            self._port.exception_as(self._rank, error)
            self._call.succeed(None)

    def __del__(self) -> None:
        if not self._passed_on:
            self._call.drop()
            if self._forwarded is not None:
                self._forwarded[1]()

    def __copy__(self) -> ResponsePort:
        return self

    def __deepcopy__(self, _memo: object) -> ResponsePort:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        # Whether such bytes are ever sent is unknown, and so would be whether the call still waits for this port.
        raise TypeError("a response port can be sent in a message, but not pickled: pass the port itself")

    def pass_on(self, forward: Callable[[Answered], tuple[Any, Callable[[], None]]]) -> tuple[Any, int]:
        """Have the receiver of the message that is being made answer the call, which waits for that once it is made.

        Args:
            forward: opens a port that answers the call, and returns it with what closes it.

        Returns:
            The port for the answers, and the rank in them.
        """
        when_serialized(self._pass_on)
        if self._port is not None:
            return self._port, self._rank
        if self._forwarded is None:
            self._forwarded = forward(self._call)
        return self._forwarded[0], 0

    def _pass_on(self) -> None:
        self._passed_on = True
        if self._port is not None:
            self._call.succeed(None)
