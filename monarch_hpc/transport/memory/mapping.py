"""Memory of another process of this host, mapped here, and copies from and to it, which need nothing of the owner."""

from __future__ import annotations

import ctypes
from _thread import allocate_lock

from monarch_hpc.core.errors import ChannelClosed, TransportError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.storage.segment import Access, Span, open_span
from monarch_hpc.transport.engine.copiers import Copiers
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key, host_view
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["Mapping", "map_memory"]

_AT_ONCE_BYTES = 64 << 10
"""Up to this size the copy takes less time than another thread takes to begin it."""

_STEP_BYTES = 4 << 20
"""Size of the steps between which a copy can be stopped: about a millisecond."""

_log = Logger(__name__)


class _Copy:
    """A copy that threads do step by step, see `transport.engine.copiers.Task`."""

    def __init__(self, copiers: Copiers, transfer: Transfer, into: memoryview, data: memoryview) -> None:
        self._copiers = copiers
        self._transfer = transfer
        self._views = into, data  # which keep the memory
        self._addresses = address_of(into), address_of(data)
        self._num_bytes = data.nbytes
        self._lock = allocate_lock()
        self._begun = 0
        self._num_working = 0
        self._error: TransportError | None = None
        transfer.stop_by(self.stop)
        if not copiers.add(self, -(-data.nbytes // _STEP_BYTES)):
            self.stop(ChannelClosed("this process", "it is closing"))

    def take(self) -> int:
        """See `transport.engine.copiers.Task`."""
        with self._lock:
            at = self._begun
            if at >= self._num_bytes:
                return -1
            self._begun += _STEP_BYTES
            self._num_working += 1
            return at

    def do(self, step: int) -> None:
        """See `transport.engine.copiers.Task`."""
        into, data = self._addresses
        # Without the interpreter's lock.
        ctypes.memmove(into + step, data + step, min(_STEP_BYTES, self._num_bytes - step))
        self._leave(None, 1)

    def stop(self, error: TransportError) -> None:
        """End it with *error*, once the steps that are in progress have ended."""
        self._leave(error, 0)

    def _leave(self, error: TransportError | None, num_left: int) -> None:
        with self._lock:
            self._num_working -= num_left
            if error is not None and self._begun < self._num_bytes:
                self._error = error
                self._begun = self._num_bytes
            over = not self._num_working and self._begun >= self._num_bytes
        if over:
            self._copiers.remove(self)
            self._transfer.finish(self._error)


class Mapping:
    """One memory of another process, mapped here.

    Args:
        view: all of it; writable if the memory is.
    """

    def __init__(self, engine: Engine, copiers: Copiers, key: Key, view: memoryview, where: str) -> None:
        self._engine = engine
        self._copiers = copiers
        self._key = key
        self._view = view
        self._where = where

    def move(self, offset: int, buffer: object, *, write: bool) -> Transfer:
        """Read from *offset* on until *buffer*, memory of this host, is full; or write *buffer* there."""
        view = host_view(buffer, writable=not write)
        transfer = Transfer(self._engine, f"copy of {view.nbytes} bytes at {offset}, {self._where}")
        problem = self._key.error(self._where, offset, view.nbytes, write=write)
        if problem is not None:
            transfer.finish(problem)
            return transfer
        place = self._view[offset : offset + view.nbytes]
        into, data = (place, view) if write else (view, place)
        if view.nbytes <= _AT_ONCE_BYTES:
            into[:] = data
            transfer.finish()
        else:
            _Copy(self._copiers, transfer, into, data)
        return transfer


def map_memory(engine: Engine, copiers: Copiers, key: Key, where: str) -> Mapping | None:
    """Map a memory of another process; None if it is not shareable, or lies elsewhere.

    Args:
        copiers: the threads that copy.
        where: that process, for errors.
    """
    if not key.span:
        return None
    span = Span.parse(key.span)
    if not span.near:
        return None
    try:
        view = open_span(span, Access.WRITE if key.writable else Access.READ)
    except OSError as error:
        _log.warning("memory of %s is copied by other means, since it cannot be mapped: %s", where, error)
        return None
    return Mapping(engine, copiers, key, view, where)
