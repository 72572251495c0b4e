"""Memory that UCX serves to peers: registered once for each allocation, however many arrays of it are lent.

To register is to pin: a tenth of a second for each GiB on RDMA, and locked memory, which may be limited. A range is
registered as long as somebody lends a part of it, and holds that memory meanwhile; so no registration outlives what it
was made of, and none is found again for memory that has taken its place.
"""

from __future__ import annotations

import _thread
import bisect
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from monarch_hpc.core.machine.buffer_address import lend
from monarch_hpc.transport.memory.memory import Memory
from monarch_hpc.transport.memory.places import Scattered
from monarch_hpc.transport.ucx.gpu import make_span

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx

__all__ = ["Registrations"]


class _Registered:
    """A range of addresses that UCX serves.

    Attributes:
        first, end: its first address, and the one behind it.
        num_uses: memories that it serves.
    """

    __slots__ = ("end", "first", "num_uses", "served")

    def __init__(self, first: int, end: int, served: _ucx.Memory) -> None:
        self.first = first
        self.end = end
        self.served = served
        self.num_uses = 0


class _Apart:
    """The registrations of memory that lies apart, for all memories of it.

    Attributes:
        rkeys: UCX's packed key of each range.
        num_uses: open memories of it.
    """

    def __init__(self, taken: list[_Registered]) -> None:
        self.taken = taken
        self.rkeys = tuple(one.served.key for one in taken)
        self.num_uses = 1


class _Ranges:
    """Registered ranges, by address."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ranges: list[_Registered] = []

    def find(self, first: int, end: int) -> _Registered | None:
        place = bisect.bisect(self._firsts, first) - 1
        return self._ranges[place] if place >= 0 and end <= self._ranges[place].end else None

    def add(self, one: _Registered) -> None:
        place = bisect.bisect(self._firsts, one.first)
        self._firsts.insert(place, one.first)
        self._ranges.insert(place, one)

    def remove(self, one: _Registered) -> None:
        place = bisect.bisect_left(self._firsts, one.first)
        while self._ranges[place] is not one:
            place += 1
        del self._firsts[place], self._ranges[place]


class Registrations:
    """The ranges that *worker* serves; for any thread."""

    def __init__(self, worker: _ucx.Worker) -> None:
        from monarch_hpc.transport.ucx import _ucx

        self._worker = worker
        self._span = _ucx.Span
        self._failed: type[Exception] = _ucx.UcxError
        self._lock = _thread.allocate_lock()
        # Sorted by address; those that may be written to apart, since their keys let peers write.
        self._ranges = {False: _Ranges(), True: _Ranges()}
        self._apart: dict[bool, WeakKeyDictionary[Scattered, _Apart]]
        self._apart = {False: WeakKeyDictionary(), True: WeakKeyDictionary()}

    def serve(self, memory: Memory) -> None:
        """Let peers get, and put to, *memory* until it is closed.

        Raises:
            UcxError: UCX does not take it.
        """
        key = memory.parts
        if key.on_device:
            span = make_span(memory.buffer, key.writable)
            registered = self._worker.register(span, key.writable)
            memory.attach(span.address, registered.key, registered.close)
        elif key.places is None:
            own = memory.address, memory.address + memory.nbytes
            one = self._take(memory.allocation or own, own, memory.view, writable=key.writable)
            memory.attach(memory.address, one.served.key, partial(self._give_back, [one], writable=key.writable))
        else:
            buffer = memory.buffer
            assert isinstance(buffer, Scattered), "it lies apart"
            apart = self._take_apart(buffer, writable=key.writable)
            memory.attach_places(apart.rkeys, partial(self._give_apart_back, buffer, apart, writable=key.writable))

    def _take_apart(self, buffer: Scattered, *, writable: bool) -> _Apart:
        """The registrations of all ranges of *buffer*; those of an earlier memory of the same, while that is open."""
        with self._lock:
            known = self._apart[writable].get(buffer)
            if known is not None:
                known.num_uses += 1
                return known
        taken: list[_Registered] = []
        try:
            for address, size, held in zip(buffer.places.addresses, buffer.places.sizes, buffer.held, strict=True):
                own = address, address + size
                taken.append(self._take(own, own, held, writable=writable))
        except BaseException:
            self._give_back(taken, writable=writable)
            raise
        apart = _Apart(taken)
        with self._lock:
            self._apart[writable].setdefault(buffer, apart)
        return apart

    def _give_apart_back(self, buffer: Scattered, apart: _Apart, *, writable: bool) -> None:
        with self._lock:
            apart.num_uses -= 1
            over = not apart.num_uses
            if over and self._apart[writable].get(buffer) is apart:
                del self._apart[writable][buffer]
        if over:
            self._give_back(apart.taken, writable=writable)

    def _take(self, whole: tuple[int, int], own: tuple[int, int], held: object, *, writable: bool) -> _Registered:
        """The registration of *own*, a part of *whole*; made if there is none: of *whole*, or else of *own* alone."""
        if not (whole[0] <= own[0] and own[1] <= whole[1]):
            whole = own
        ranges = self._ranges[writable]
        with self._lock:
            found = ranges.find(*own)
            if found is None:
                try:
                    found = self._register(*whole, held, writable=writable)
                except self._failed:
                    if whole == own:
                        raise
                    found = self._register(*own, held, writable=writable)
                ranges.add(found)
            found.num_uses += 1
            return found

    def _register(self, first: int, end: int, held: object, *, writable: bool) -> _Registered:
        span = self._span(lend(first, end - first, held), writable)
        return _Registered(first, end, self._worker.register(span, writable))

    def _give_back(self, taken: Sequence[_Registered], *, writable: bool) -> None:
        unused = []
        with self._lock:
            for one in taken:
                one.num_uses -= 1
                if not one.num_uses:
                    unused.append(one)
                    self._ranges[writable].remove(one)
        for one in unused:
            one.served.close()
