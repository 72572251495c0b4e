"""Serializes the payloads of frames between actors: spawns, calls and results. `sent_failures` has those of exceptions.

Payloads are tuples of plain values, because those take the serializer's fast path.
"""

from __future__ import annotations

import struct
from typing import Any

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.shape import Extent, Region
from monarch_hpc.wire.frames import Buffer, Frame
from monarch_hpc.wire.obstacle import refusal
from monarch_hpc.wire.serializer import dumps, loads

__all__ = [
    "Spawned",
    "View",
    "call_head",
    "head_of",
    "pack_call",
    "pack_result",
    "pack_spawn",
    "region_of",
    "split_call",
    "unpack_call",
    "unpack_head",
    "unpack_spawn",
    "view_of",
]

View = tuple[Any, ...]
"""A `Region` as plain values: labels, sizes, offset, strides; and its picks, if it has some."""

_CALL = struct.Struct("<BI")  # whether there are keyword arguments; length of the head
_WITH_NAMES = b"\x01"
_SPAWN = struct.Struct("<I")  # length of the head


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


def split_call(body: bytes) -> tuple[bytes, memoryview]:
    """The head of a call's body, for `unpack_head`, and its packed arguments."""
    _, size = _CALL.unpack_from(body)
    end = _CALL.size + size
    return body[_CALL.size : end], memoryview(body)[end:]


def head_of(frame: Frame) -> bytes:
    """The head of a call, for `unpack_head`."""
    _, size = _CALL.unpack_from(frame.body)
    return bytes(frame.body[_CALL.size : _CALL.size + size])


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
