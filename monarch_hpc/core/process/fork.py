"""Notifies objects in a forked child that it holds only copies of their parent's state, before other code runs there.

Only registered objects are notified: a process forked before any of them existed, as procs are by their zygote, is a
process like any other. `subprocess` forks without running Python code, and notifies none.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from _thread import RLock, get_ident
from collections.abc import Iterable, Iterator
from typing import Protocol

from monarch_hpc.core.errors import ForkedError

__all__ = ["Forkable", "Owned", "divert", "hold_forks", "watch_forks"]


class Forkable(Protocol):
    """An object that belongs to the process that made it."""

    def forked(self, parent: int) -> None:
        """Called in a child forked by process *parent*: this object is a copy of the parent's."""
        ...


class Owned:
    """An object that refuses to be used in forked children of the process that made it.

    Attributes:
        forked_from: process id of the owner, in a forked child; 0 in the owner itself.
    """

    forked_from = 0

    def check_own(self) -> None:
        """Refuse use in a forked child.

        Raises:
            ForkedError: the object belongs to the process that this one was forked from.
        """
        if self.forked_from:
            raise ForkedError(self.forked_from)


def divert(fds: Iterable[int]) -> None:
    """Point descriptors inherited from the parent at /dev/null, so that this child does not keep their peers waiting.

    The numbers stay in use: objects in this process still hold them, and will close them.
    """
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(null, fd, inheritable=False)
    os.close(null)


class _Forks:
    """Objects to notify after a fork, in the order of their registration."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._registered: list[weakref.ref[Forkable]] = []
        os.register_at_fork(after_in_child=self._notify)

    def add(self, one: Forkable) -> None:
        self._registered = [known for known in self._registered if known() is not None]
        self._registered.append(weakref.ref(one))

    def _notify(self) -> None:
        parent, self._pid = self._pid, os.getpid()
        registered, self._registered = self._registered, []
        for known in registered:
            one = known()
            if one is not None:
                one.forked(parent)


_forks: _Forks | None = None


def watch_forks(one: Forkable) -> None:
    """Call ``one.forked`` in every child forked while *one* lives; it is held by a weak reference."""
    global _forks
    if _forks is None:
        _forks = _Forks()
    _forks.add(one)


class _HeldForks:
    """Makes forks wait for a lock, for a limited time: they may hold locks themselves, such as that of `logging`."""

    def __init__(self) -> None:
        self.lock = RLock()
        self._waited: set[int] = set()  # threads that fork, and hold the lock
        os.register_at_fork(before=self._before, after_in_parent=self._after, after_in_child=self._after_in_child)

    def _before(self) -> None:
        if self.lock.acquire(timeout=_LONGEST_S):
            self._waited.add(get_ident())

    def _after(self) -> None:
        if get_ident() in self._waited:
            self._waited.discard(get_ident())
            self.lock.release()

    def _after_in_child(self) -> None:
        self.lock, self._waited = RLock(), set()


_LONGEST_S = 5.0
"""Longest wait of a fork; loading UCX takes a tenth of a second, or a few on a slow file system."""

_held_forks = _HeldForks()


@contextlib.contextmanager
def hold_forks() -> Iterator[None]:
    """Let forks of other threads wait until this context is left; for what must not be copied half done.

    Such is the loading of shared libraries: in a child that was forked meanwhile, the dynamic loader aborts at the next
    library. Forks of `subprocess`, which run a program at once, do not wait.
    """
    with _held_forks.lock:
        yield
