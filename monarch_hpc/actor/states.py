"""The states of actors: what `__checkpoint__` returns, as bytes, in memory or in a file."""

from __future__ import annotations

import inspect
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from monarch_hpc.core.errors import FrameError
from monarch_hpc.core.storage.files import read_private, write_private
from monarch_hpc.wire.serializer import dumps, loads

__all__ = ["pack_state", "restore", "take", "unpack_state"]

_MAGIC = b"mhstate1"
_COUNT = struct.Struct("<Q")


def pack_state(state: object) -> bytes:
    """Serialize *state*, as messages are.

    Raises:
        Exception: whatever the state's own pickling raises.
    """
    body, buffers = dumps(state)
    parts = [memoryview(part).cast("B") for part in (body, *buffers)]
    sizes = b"".join(_COUNT.pack(part.nbytes) for part in parts)
    return b"".join((_MAGIC, _COUNT.pack(len(parts)), sizes, *parts))


def unpack_state(data: bytes) -> Any:
    """Return what `pack_state` serialized.

    Raises:
        FrameError: the data is not a whole state.
        Exception: whatever the state's own unpickling raises.
    """
    head = len(_MAGIC) + _COUNT.size
    if len(data) < head or data[: len(_MAGIC)] != _MAGIC:
        raise FrameError(f"{len(data)} bytes are not the state of an actor")
    (num,) = _COUNT.unpack_from(data, len(_MAGIC))
    at = head + num * _COUNT.size
    if not 1 <= num <= len(data) or at > len(data):
        raise FrameError(f"the state of an actor ends early: {len(data)} bytes for {num} parts")
    sizes = [_COUNT.unpack_from(data, head + index * _COUNT.size)[0] for index in range(num)]
    if at + sum(sizes) != len(data):
        raise FrameError(f"the state of an actor has {len(data)} bytes, not {at + sum(sizes)}")
    parts = []
    for size in sizes:
        # Copies that may be written: arrays are made around them.
        parts.append(bytearray(memoryview(data)[at : at + size]))
        at += size
    return loads(bytes(parts[0]), parts[1:])


def take(target: object, path: str) -> bytes | Awaitable[bytes]:
    """Return what the actor *target* has to keep; with a *path*, write it there and return no bytes.

    Raises:
        TypeError: its class has no `__checkpoint__`.
        Exception: what that raises, and what pickling or the file system raise.
    """
    found = _method(target, "__checkpoint__")()
    if not inspect.isawaitable(found):
        return _store(found, path)

    async def later() -> bytes:
        return _store(await found, path)

    return later()


def restore(target: object, state: bytes | str) -> Awaitable[None] | None:
    """Give the actor *target* a state, as bytes or as the path of its file.

    Raises:
        TypeError: its class has no `__restore__`.
        Exception: what that raises, and what reading and unpickling raise.
    """
    if isinstance(state, str):
        path = Path(state)
        state = read_private(path, path.stat().st_size)
    done = _method(target, "__restore__")(unpack_state(state))
    if not inspect.isawaitable(done):
        return None

    async def later() -> None:
        await done

    return later()


def _store(state: object, path: str) -> bytes:
    data = pack_state(state)
    if not path:
        return data
    write_private(Path(path), data)
    return b""


def _method(target: object, name: str) -> Callable[..., Any]:
    method = getattr(type(target), name, None)
    if method is None:
        raise TypeError(f"{type(target).__name__} has no method {name}, which checkpoints and healing call")
    bound: Callable[..., Any] = method.__get__(target)
    return bound
