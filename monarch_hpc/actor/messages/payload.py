"""What the frames between actors carry: spawns, calls, results and failures.

Tuples of plain values on purpose: those take the serializer's fast path.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.remote_error import as_actor_error
from monarch_hpc.core.description import class_name, summary_of, text_of, trace_of
from monarch_hpc.core.errors import ActorFailed
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.transport.engine.interrupts import may_be_signal
from monarch_hpc.wire.frames import Buffer, Frame
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps, loads

__all__ = [
    "View",
    "call_head",
    "pack_call",
    "pack_failure",
    "pack_fault",
    "pack_result",
    "pack_spawn",
    "region_of",
    "send_failure",
    "unloadable",
    "unpack_call",
    "unpack_failure",
    "unpack_fault",
    "unpack_head",
    "unpack_spawn",
    "view_of",
]

View = tuple[tuple[str, ...], tuple[int, ...], int, tuple[int, ...]]
"""A `Region` as plain values: labels, sizes, offset, strides."""

_CALL = struct.Struct("<BI")  # whether there are keyword arguments; how long the head is
_WITH_NAMES = b"\x01"


_LAST_WORDS = dumps((("an actor", "an exception", "neither it nor a description of it can be sent", ""), b"", ()))


def view_of(region: Region) -> View:
    """*region* as plain values."""
    return region.extent.labels, region.extent.sizes, region.offset, region.strides


def region_of(view: View) -> Region:
    """The region that `view_of` flattened."""
    labels, sizes, offset, strides = view
    return Region(Extent(labels, sizes), offset, strides)


def call_head(method: str, region: Region) -> bytes:
    """What all calls of an endpoint of a view begin with: made once, and read once by each actor."""
    head = dumps((method, view_of(region)))[0]
    return _CALL.pack(0, len(head)) + head


def pack_call(head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[bytes, list[Buffer]]:
    """Serialize a call; the same bytes serve every rank of the view.

    Args:
        head: of `call_head`.

    Raises:
        TypeError: an argument cannot be pickled; it names which part of it.
    """
    try:
        if not kwargs:
            body, buffers = dumps(args)
            return head + body, buffers
        body, buffers = dumps((args, tuple(kwargs.items())))
    except Exception as error:  # pickling runs user code
        raise refusal(_by_name(args, kwargs), error) from error
    return b"".join((_WITH_NAMES, head[1:], body)), buffers


def pack_spawn(
    name: str, region: Region, cls: type, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[bytes, list[Buffer]]:
    """Serialize what makes an actor; otherwise as `pack_call`."""
    try:
        made, buffers = dumps((cls, args, kwargs))
    except Exception as error:  # pickling runs user code
        raise refusal({f"class {cls.__name__}": cls, **_by_name(args, kwargs)}, error) from error
    return dumps((name, view_of(region), made))[0], buffers


def unpack_spawn(frame: Frame) -> tuple[str, Region, bytes]:
    """The name and the region of the actors' mesh, and what `loads` makes class and arguments of.

    Runs no user code: who an actor is, is known also where its class or its arguments cannot be rebuilt.
    """
    named: Any = loads(frame.body)
    name, view, made = named
    return name, region_of(view), made


def pack_result(value: object) -> tuple[bytes, list[Buffer]]:
    """Serialize the result of a call.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return dumps(value)
    except BaseException as error:  # pickling runs user code, and a caller waits for what comes of it
        raise refusal({"the result": value}, error) from error


def _by_name(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    return {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}


def unpack_call(frame: Frame) -> tuple[bytes, tuple[Any, ...], dict[str, Any]]:
    """The head of a call, to be read by `unpack_head`, its arguments and keyword arguments."""
    body = frame.body
    flags, size = _CALL.unpack_from(body)
    end = _CALL.size + size
    given: Any = loads(memoryview(body)[end:], frame.buffers)
    head = bytes(body[_CALL.size : end])
    if not flags:
        return head, given, {}
    args, kwargs = given
    return head, args, dict(kwargs)


def unpack_head(head: bytes) -> tuple[str, Region]:
    """The method and the view that was called."""
    named: Any = loads(head)
    method, view = named
    return method, region_of(view)


def send_failure(where: str, error: BaseException, send: Callable[[bytes, Sequence[Buffer]], object]) -> None:
    """Send *error*, raised at *where*: whole if it can be pickled and sent, else in words, else a constant.

    Args:
        send: takes the body and the buffers of a FAILURE frame; called with the next smaller ones after it has raised.

    Raises:
        Exception: what *send* raised of the smallest.
    """
    refused: Exception | None = None
    for form in _forms(where, error):
        try:
            send(*form)
        except Exception as raised:  # noqa: BLE001 a limit, or memory is short: less of it may pass
            refused = raised
        else:
            return
    if refused is not None:
        raise refused


def _forms(where: str, error: BaseException) -> Iterator[tuple[bytes, Sequence[Buffer]]]:
    """What `send_failure` sends, the largest first; whatever the exception is and does, there is one."""
    words = where, class_name(error), text_of(error), trace_of(error) if issubclass(type(error), BaseException) else ""
    try:
        exception, buffers = dumps(error)
        whole = dumps((words, exception, tuple(bytes(buffer) for buffer in buffers)))
    except BaseException as unpicklable:  # noqa: BLE001 pickling runs user code
        why = text_of(refusal({words[1]: error}, unpicklable))
    else:
        yield whole
        why = f"it is too large, {len(whole[0])} bytes"
        del exception, buffers, whole
    with contextlib.suppress(Exception):  # memory is short, or somebody has changed what pickles
        yield dumps(((*words[:3], f"{words[3]}(the exception itself could not travel: {why})\n"), b"", ()))
    yield _LAST_WORDS


def pack_failure(where: str, error: BaseException) -> tuple[bytes, Sequence[Buffer]]:
    """Serialize *error*, raised at *where*: whole if it can be pickled, else in words."""
    return next(_forms(where, error))


def unpack_failure(frame: Frame) -> BaseException:
    """The remote exception, an `ActorError` too, with the remote traceback, rank and host as a note.

    In words, as `ActorFailed`, where it cannot be rebuilt here, and where it is not an `Exception`: what ends a process
    or a task there, such as `KeyboardInterrupt`, is not to end one here.
    """
    document = loads(frame.body, frame.buffers)
    assert isinstance(document, tuple)
    (where, type_name, message, trace), exception, buffers = document
    if exception:
        try:
            error: Any = loads(exception, buffers)
            if issubclass(type(error), Exception):
                BaseException.add_note(error, f"raised by {where}; remote traceback:\n{trace}")
                return as_actor_error(error)
        except BaseException as raised:
            if may_be_signal(raised):
                raise
            trace = f"{trace}(its exception could not be rebuilt here: {summary_of(raised)})\n"
    return ActorFailed(where, type_name, message, trace)


def unloadable(raised: BaseException) -> BaseException:
    """The error of an answer whose value could not be rebuilt here: what its class *raised*, as an `ActorError`.

    Raises:
        BaseException: *raised* itself, if it may have come from a signal handler.
    """
    if issubclass(type(raised), Exception):
        return as_actor_error(raised)
    if may_be_signal(raised):
        raise raised
    return ActorFailed("rebuilding the answer", class_name(raised), text_of(raised), trace_of(raised))


def pack_fault(actor: int, failure: MeshFailure) -> tuple[bytes, list[Buffer]]:
    """Serialize the failure of an actor that no call reports."""
    return dumps((actor, failure.mesh_name, failure.rank, failure.where, failure.cause, failure.trace))


def unpack_fault(frame: Frame) -> tuple[int, MeshFailure]:
    """The number of the actor, and its failure."""
    fault = loads(frame.body, frame.buffers)
    assert isinstance(fault, tuple)
    actor, *fields = fault
    return actor, MeshFailure(*fields)
