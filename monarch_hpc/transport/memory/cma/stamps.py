"""Stamps: random bytes in the memory of a process, one for each channel, that say that its memory may still be used.

A peer that copies memory by itself reads the stamp of its channel with the same system call, after the data. So it
notices that the process is another one with the same pid, as the kernel hands out again, and that the channel has ended
here: nothing then reads what has replaced memory since.
"""

from __future__ import annotations

import mmap
import os
from typing import Generic, TypeVar

from monarch_hpc.core.dataclass import dataclass
from monarch_hpc.core.machine.buffer_address import address_of

__all__ = ["STAMP_BYTES", "Stamp", "Stamps"]

STAMP_BYTES = 16
"""Size of a stamp: no other memory has the same bytes by chance."""

_WIPE_ON_FORK = 18  # MADV_WIPEONFORK, which Python's mmap does not name: a forked child is not the owner

Holder = TypeVar("Holder")


@dataclass(frozen=True, slots=True)
class Stamp:
    """A stamp.

    Attributes:
        address: where it lies in its process.
    """

    address: int
    value: bytes


class Stamps(Generic[Holder]):
    """The stamps of this process, each of one holder; not thread-safe."""

    def __init__(self) -> None:
        self._stamps: dict[Holder, tuple[Stamp, memoryview]] = {}
        self._free: list[memoryview] = []

    def of(self, holder: Holder) -> Stamp:
        """The stamp of *holder*; made at the first call.

        Raises:
            OSError: no memory, or a kernel older than 4.14, which would copy it to forked children.
        """
        known = self._stamps.get(holder)
        if known is None:
            if not self._free:
                self._free = _make_places()
            place = self._free.pop()
            place[:] = value = os.urandom(STAMP_BYTES)
            known = self._stamps[holder] = Stamp(address_of(place), value), place
        return known[0]

    def wipe(self, holder: Holder) -> None:
        """Invalidate the stamp of *holder*, if it has one: at once, for every copy that is in progress."""
        known = self._stamps.pop(holder, None)
        if known is not None:
            known[1][:] = bytes(STAMP_BYTES)
            self._free.append(known[1])


def _make_places() -> list[memoryview]:
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.madvise(_WIPE_ON_FORK)
    view = memoryview(page)
    return [view[at : at + STAMP_BYTES] for at in range(0, mmap.PAGESIZE, STAMP_BYTES)]
