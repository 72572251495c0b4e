"""What the frames between actors carry: spawns, calls, results and failures.

Tuples of plain values on purpose: those take the serializer's fast path.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from monarch_hpc.actor.fault import MeshFailure
from monarch_hpc.actor.remote import as_actor_error
from monarch_hpc.core.errors import ActorFailed
from monarch_hpc.core.shape import Extent, Region
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
    "unpack_call",
    "unpack_failure",
    "unpack_fault",
    "unpack_head",
    "view_of",
]

View = tuple[tuple[str, ...], tuple[int, ...], int, tuple[int, ...]]
"""A `Region` as plain values: labels, sizes, offset, strides."""

_CALL = struct.Struct("<BI")  # whether there are keyword arguments; how long the head is
_WITH_NAMES = b"\x01"


@dataclass(frozen=True, slots=True)
class _Failure:
    where: str
    type_name: str
    message: str
    remote_traceback: str


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
        return dumps((name, view_of(region), cls, args, kwargs))
    except Exception as error:  # pickling runs user code
        raise refusal({f"class {cls.__name__}": cls, **_by_name(args, kwargs)}, error) from error


def pack_result(value: object) -> tuple[bytes, list[Buffer]]:
    """Serialize the result of a call.

    Raises:
        TypeError: it cannot be pickled.
    """
    try:
        return dumps(value)
    except Exception as error:  # pickling runs user code
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


def pack_failure(where: str, error: BaseException) -> tuple[bytes, Sequence[Buffer]]:
    """Serialize *error*, raised at *where*: as itself if it can travel, as its words in any case."""
    text = "".join(traceback.format_exception(error))
    failure = (where, type(error).__name__, str(error), text)
    try:
        exception, buffers = dumps(error)
        return dumps((failure, exception, tuple(bytes(buffer) for buffer in buffers)))
    except Exception as unpicklable:  # noqa: BLE001 pickling runs user code
        note = f"(the exception itself could not travel: {refusal({type(error).__name__: error}, unpicklable)})"
        return dumps(((*failure[:3], f"{text}{note}\n"), b"", ()))


def unpack_failure(frame: Frame) -> BaseException:
    """The remote exception, an `ActorError` too, with the remote traceback, rank and host as a note."""
    document = loads(frame.body, frame.buffers)
    assert isinstance(document, tuple)
    fields, exception, buffers = document
    failure = _Failure(*fields)
    if exception:
        try:
            error = loads(exception, buffers)
        except Exception as unloadable:  # noqa: BLE001 unpickling runs user code
            note = f"(its exception could not be rebuilt here: {type(unloadable).__name__}: {unloadable})\n"
            failure = _Failure(failure.where, failure.type_name, failure.message, failure.remote_traceback + note)
        else:
            if isinstance(error, BaseException):
                error.add_note(f"raised by {failure.where}; remote traceback:\n{failure.remote_traceback}")
                return as_actor_error(error)
    return ActorFailed(failure.where, failure.type_name, failure.message, failure.remote_traceback)


def pack_fault(actor: int, failure: MeshFailure) -> tuple[bytes, list[Buffer]]:
    """Serialize the failure of an actor that no call reports."""
    return dumps((actor, failure.mesh_name, failure.rank, failure.where, failure.cause, failure.trace))


def unpack_fault(frame: Frame) -> tuple[int, MeshFailure]:
    """The number of the actor, and its failure."""
    fault = loads(frame.body, frame.buffers)
    assert isinstance(fault, tuple)
    actor, *fields = fault
    return actor, MeshFailure(*fields)
