"""Serializes exceptions between actors: whole if possible, else as a description, else as a constant.

A caller is always answered, whatever the exception is: its pickling, its text and its class may raise themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.remote_error import as_actor_error
from monarch_hpc.core.errors import ActorError, ActorFailed, MonarchError
from monarch_hpc.core.process.signals import may_be_signal
from monarch_hpc.core.text.description import class_name, summary_of, text_of, trace_of
from monarch_hpc.wire.frames import Buffer, Frame, copy_of
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["pack_failure", "pack_fault", "send_failure", "unloadable", "unpack_failure", "unpack_fault"]

_NO_WORDS = "an actor", "an exception", "neither the exception nor a description can be sent", ""
_UNSENDABLE = dumps((False, _NO_WORDS, b"", ()))


def send_failure(
    where: str,
    error: BaseException,
    send: Callable[[bytes, Sequence[Buffer]], object],
    *,
    raised: bool = True,
) -> None:
    """Send *error*, raised at *where*: pickled if possible, else its description, else a constant.

    Args:
        send: takes body and buffers of a FAILURE frame; if it raises, it is called again with a smaller form.
        raised: whether user code raised *error*, so that it arrives as an `ActorError` whatever its class is; False for
            what this package says of a call, such as `ActorDied`, which arrives as it is.

    Raises:
        Exception: raised by *send* for the smallest form.
    """
    refused: Exception | None = None
    for form in _forms(where, error, raised):
        try:
            send(*form)
        except Exception as refusing:  # noqa: BLE001 over a limit, or memory is short: a smaller form may pass
            refused = refusing
        else:
            return
    if refused is not None:
        raise refused


def _forms(where: str, error: BaseException, raised: bool) -> Iterator[tuple[bytes, Sequence[Buffer]]]:
    """Yield the forms of an exception for `send_failure`, largest first; at least one, for any exception."""
    words = where, class_name(error), text_of(error), trace_of(error) if issubclass(type(error), BaseException) else ""
    try:
        exception, buffers = dumps(error)
        whole = dumps((raised, words, exception, tuple(copy_of(buffer) for buffer in buffers)))
    except BaseException as unpicklable:  # noqa: BLE001 pickling runs user code
        why = class_name(unpicklable)
        with contextlib.suppress(BaseException):  # the caller gets an answer even if the search for the cause fails
            why = text_of(refusal({words[1]: error}, unpicklable))
    else:
        yield whole
        why = f"{len(whole[0]) + sum(map(len, whole[1]))} bytes are too many"
        del exception, buffers, whole
    with contextlib.suppress(Exception):  # memory is short, or user code has changed how strings pickle
        described = *words[:3], f"{words[3]}(the exception itself could not be sent: {why})\n"
        yield dumps((raised, described, b"", ()))
    yield _UNSENDABLE


def pack_failure(where: str, error: BaseException) -> tuple[bytes, Sequence[Buffer]]:
    """Serialize *error*, raised at *where*: pickled if possible, else its description."""
    return next(_forms(where, error, True))


def unpack_failure(frame: Frame) -> MonarchError:
    """Return the remote exception as an `ActorError`, with a note of the remote traceback, rank and host.

    Returns an `ActorFailed` with its description if it cannot be unpickled here, or is not an `Exception`: what ends a
    remote process or task, such as `KeyboardInterrupt`, must not end one here. An error that the remote runtime
    reports, and no user code raised, is returned as it is.
    """
    document = loads(frame.body, frame.buffers)
    assert isinstance(document, tuple)
    by_user, (where, type_name, message, trace), exception, buffers = document
    if exception:
        try:
            error: Any = loads(exception, buffers)
            if not by_user and issubclass(type(error), MonarchError):
                return cast(MonarchError, error)
            if issubclass(type(error), Exception):
                BaseException.add_note(error, f"raised by {where}; remote traceback:\n{trace}")
                return as_actor_error(error, where, trace)
        except BaseException as raised:
            if may_be_signal(raised):
                raise
            trace = f"{trace}(its exception could not be rebuilt here: {summary_of(raised)})\n"
    return ActorFailed(where, type_name, message, trace)


def unloadable(raised: BaseException) -> ActorError:
    """Return the error of an answer that could not be unpickled here: the exception *raised* by that, as `ActorError`.

    Raises:
        BaseException: *raised* itself, if it may come from a signal handler.
    """
    where = "rebuilding the answer"
    if may_be_signal(raised):
        raise raised
    if issubclass(type(raised), Exception):
        return as_actor_error(cast(Exception, raised), where)
    return ActorFailed(where, class_name(raised), text_of(raised), trace_of(raised))


def pack_fault(actor: int, failure: MeshFailure) -> tuple[bytes, list[Buffer]]:
    """Serialize an actor failure that no call reports."""
    where, kind = failure.where, failure.kind
    return dumps((actor, failure.mesh_name, failure.rank, where, failure.cause, failure.trace, "", kind))


def unpack_fault(frame: Frame) -> tuple[int, MeshFailure]:
    """Return the number of the actor, and its failure."""
    fault = loads(frame.body, frame.buffers)
    assert isinstance(fault, tuple)
    actor, *fields = fault
    return actor, MeshFailure(*fields)
