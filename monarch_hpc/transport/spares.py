"""Reuses large objects that arrived a moment ago and are no longer referenced, for the next one of that size.

Memory whose pages are in place takes data several times as fast as fresh memory does, whose pages the kernel must find
and clear. An object that is still held, or not needed again, is let go within seconds.
"""

from __future__ import annotations

import mmap
import sys
from _thread import allocate_lock
from collections.abc import Callable
from typing import TypeVar

from monarch_hpc.core.clock import monotonic
from monarch_hpc.core.dataclass import dataclass

__all__ = ["KEPT_S", "Spares"]

_Large = bytes | bytearray | mmap.mmap
_Kind = TypeVar("_Kind", bound=bytes | bytearray | mmap.mmap)

KEPT_S = 10.0
"""Long enough for the next step of a program that sends in each, short enough that idle processes keep nothing."""

_MAX_BYTES = 512 << 20
"""Limit on the memory that is kept so long."""


@dataclass(slots=True, eq=False)
class _Spare:
    made: _Large
    until_s: float

    @property
    def num_bytes(self) -> int:
        """Its present length, as its last holder may have changed it, or closed it."""
        made = self.made
        return 0 if isinstance(made, mmap.mmap) and made.closed else len(made)

    @property
    def references(self) -> int:
        return sys.getrefcount(self.made)


_FREE = _Spare(bytearray(1), 0.0).references
"""The references that the interpreter counts for an object that only a spare holds."""


class Spares:
    """The objects of a process; for any thread.

    Args:
        clock: returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._spares: list[_Spare] = []
        self._later: Callable[[float, Callable[[], None]], object] | None = None
        self._waits = False
        self._lock = allocate_lock()

    @property
    def num_bytes(self) -> int:
        """The memory that is kept."""
        return sum(spare.num_bytes for spare in self._spares)

    def release_by(self, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Keep objects from here on; *later*, which calls a function after some seconds, is used to let them go."""
        # Without the interpreter's lock, counts of references say nothing.
        if getattr(sys, "_is_gil_enabled", lambda: True)():
            self._later = later
            self._waits = False

    def take(self, kind: type[_Kind], num_bytes: int) -> _Kind | None:
        """Return an object without other references, with any contents; None if none has that type and length."""
        with self._lock:
            self._release()
            for spare in self._spares:
                if spare.references == _FREE and type(spare.made) is kind and spare.num_bytes == num_bytes:
                    spare.until_s = self._clock() + KEPT_S
                    return spare.made
        return None

    def clear(self) -> bool:
        """Let all objects go; tell whether there were any."""
        with self._lock:
            gone, self._spares = self._spares, []
        return bool(gone)

    def keep(self, made: _Large) -> None:
        """Keep *made* for a moment, in case that its holder lets it go."""
        with self._lock:
            if self._later is not None and self.num_bytes + len(made) <= _MAX_BYTES:
                self._spares.append(_Spare(made, self._clock() + KEPT_S))
                self._wait()

    def _wait(self) -> None:
        if not self._waits and self._later is not None:
            self._waits = True
            self._later(KEPT_S, self._on_time)

    def _on_time(self) -> None:
        with self._lock:
            self._waits = False
            self._release()
            if self._spares:
                self._wait()

    def _release(self) -> None:
        now_s = self._clock()
        self._spares = [spare for spare in self._spares if spare.until_s > now_s]
