"""Forks of this process: what a child must not go on with is told there, before any other code runs.

Only what is registered is told: a process that was forked before anything of ours began, as procs are from their
zygote, is a process like any other. `subprocess` forks without Python code, and tells nobody.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol

from monarch_hpc.core.errors import ForkedError

__all__ = ["Forkable", "Owned", "divert", "watch_forks"]


class Forkable(Protocol):
    """What belongs to the process that made it."""

    def forked(self, parent: int) -> None:
        """This is a child of process *parent* now, and holds copies of what is the parent's."""
        ...


class Owned:
    """What refuses itself to children of the process that made it.

    Attributes:
        forked_from: the process that has it; 0 if it is this one.
    """

    forked_from = 0

    def check_own(self) -> None:
        """Raise unless it is this process's.

        Raises:
            ForkedError: it belongs to the process that this one was forked from.
        """
        if self.forked_from:
            raise ForkedError(self.forked_from)


def divert(fds: Iterable[int]) -> None:
    """In a child: let descriptors of the parent lead nowhere, so that their other ends do not wait for this process.

    Their numbers stay taken: objects that know them are still here, and close them once more.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)


class _Forks:
    """Those to be told, in the order in which they were registered."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._told: list[weakref.ref[Forkable]] = []
        os.register_at_fork(after_in_child=self._tell)

    def add(self, one: Forkable) -> None:
        self._told = [known for known in self._told if known() is not None]
        self._told.append(weakref.ref(one))

    def _tell(self) -> None:
        parent, self._pid = self._pid, os.getpid()
        told, self._told = self._told, []
        for known in told:
            one = known()
            if one is not None:
                one.forked(parent)


_forks: _Forks | None = None


def watch_forks(one: Forkable) -> None:
    """Tell *one* in every child that is forked while it lives; it is held weakly."""
    global _forks
    if _forks is None:
        _forks = _Forks()
    _forks.add(one)
