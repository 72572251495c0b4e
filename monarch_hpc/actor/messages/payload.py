"""Serializes the payloads of frames between actors: spawns, calls, results and failures.

Payloads are tuples of plain values, because those take the serializer's fast path.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.messages.remote_error import as_actor_error
from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.errors import ActorError, ActorFailed, MonarchError
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.core.text.description import class_name, summary_of, text_of, trace_of
from monarch_hpc.transport.engine.interrupts import may_be_signal
from monarch_hpc.wire.frames import Buffer, Frame, copy_of
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps, loads

__all__ = [
    "Spawned",
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

View = tuple[Any, ...]
"""A `Region` as plain values: labels, sizes, offset, strides; and its picks, if it has some."""

_CALL = struct.Struct("<BI")  # whether there are keyword arguments; length of the head
_WITH_NAMES = b"\x01"
_SPAWN = struct.Struct("<I")  # length of the head


_NO_WORDS = "an actor", "an exception", "neither the exception nor a description can be sent", ""
_UNSENDABLE = dumps((False, _NO_WORDS, b"", ()))


def view_of(region: Region) -> View:
    """Return *region* as plain values."""
    view = region.extent.names, region.extent.shape, region.offset, region.strides
    return view if region.picks is None else (*view, region.picks)


def region_of(view: View) -> Region:
    """Return the region that `view_of` flattened."""
    labels, sizes, offset, strides, *picks = view
    return Region(Extent(labels, sizes), offset, strides, *picks)


def call_head(method: str, region: Region) -> bytes:
    """Return the prefix of all calls to an endpoint of a view; packed once, and parsed once by each actor."""
    head = dumps((method, view_of(region)))[0]
    return _CALL.pack(0, len(head)) + head


def pack_call(head: bytes, args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[bytes, list[Buffer]]:
    """Serialize a call; the same bytes serve every rank of the view.

    Args:
        head: from `call_head`.

    Raises:
        TypeError: an argument cannot be pickled; the text names the part that fails.
    """
    try:
        if not kwargs:
            body, buffers = dumps(args)
            return head + body, buffers
        body, buffers = dumps((args, tuple(kwargs.items())))
    except Exception as error:  # pickling runs user code
        raise refusal(_by_name(args, kwargs), error) from error
    return b"".join((_WITH_NAMES, head[1:], body)), buffers


@dataclass(frozen=True, slots=True)
class Spawned:
    """The content of a SPAWN frame.

    Attributes:
        region: the place of the actor's mesh among the procs of its proc mesh.
        creator: who spawns it, see `actor.messages.creator`.
        made: the still pickled class and arguments.
    """

    name: str
    region: Region
    creator: object
    made: Buffer


def pack_spawn(
    name: str, region: Region, creator: object, cls: type, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[bytes, list[Buffer]]:
    """Serialize class and arguments of an actor; otherwise like `pack_call`.

    Args:
        creator: plain values that describe who spawns it, see `actor.messages.creator`.
    """
    try:
        made, buffers = dumps((cls, args, kwargs))
    except Exception as error:  # pickling runs user code
        raise refusal({f"class {cls.__name__}": cls, **_by_name(args, kwargs)}, error) from error
    head = dumps((name, view_of(region), creator))[0]
    return _SPAWN.pack(len(head)) + head + made, buffers


def unpack_spawn(frame: Frame) -> Spawned:
    """Return what `pack_spawn` packed.

    Runs no user code, so the actor can be named in errors even if its class or arguments cannot be unpickled.
    """
    body = memoryview(frame.body)
    (size,) = _SPAWN.unpack_from(body)
    end = _SPAWN.size + size
    named: Any = loads(body[_SPAWN.size : end])
    name, view, creator = named
    return Spawned(name, region_of(view), creator, body[end:])


def pack_result(value: object) -> tuple[bytes, list[Buffer]]:
    """Serialize the result of a call.

    Raises:
        TypeError: *value* cannot be pickled.
    """
    try:
        return dumps(value)
    except BaseException as error:  # pickling runs user code, and the caller needs an answer
        raise refusal({"the result": value}, error) from error


def _by_name(args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
    return {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}


def unpack_call(frame: Frame) -> tuple[bytes, tuple[Any, ...], dict[str, Any]]:
    """Return the head of a call, for `unpack_head`, its arguments and its keyword arguments."""
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
    """Return the called method and view."""
    named: Any = loads(head)
    method, view = named
    return method, region_of(view)


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
    if issubclass(type(raised), Exception):
        return as_actor_error(cast(Exception, raised), where)
    if may_be_signal(raised):
        raise raised
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
