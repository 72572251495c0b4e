"""The allocations of a program: found, made, and left, one after the other and side by side."""

from __future__ import annotations

from _thread import RLock
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from monarch_hpc.allocation.settings import read_config
from monarch_hpc.config.program import find_parents_allocation, publish_allocations
from monarch_hpc.core.errors import AllocationError
from monarch_hpc.core.logger import Logger
from monarch_hpc.core.text.description import summary_of
from monarch_hpc.mesh.program.allocations.opening import (
    Opened,
    open_allocation,
    open_attached,
    open_embedded,
    open_held,
    open_named,
)
from monarch_hpc.mesh.program.allocations.tenancy import Tenancy

__all__ = ["ANEW", "Tenancies"]

ANEW = "start the program again, or call shutdown_context() and begin anew"
"""Advice where contact with an allocation was lost: a process that was given up is not taken back as the same."""

_log = Logger(__name__)


class Tenancies:
    """The tenancies of one program. For any thread but the driver, unless a method says otherwise.

    Args:
        make: makes a tenancy, which is not open yet.
        begun: called with each tenancy before it opens: its messages may arrive.
        opened: called with each tenancy once it is open.
        ended: called with each tenancy that is no longer used, or could not be opened.
    """

    def __init__(
        self,
        make: Callable[[Opened], Tenancy],
        begun: Callable[[Tenancy], None],
        opened: Callable[[Tenancy], None],
        ended: Callable[[Tenancy], None],
    ) -> None:
        self._make = make
        self._begun = begun
        self._opened = opened
        self._ended = ended
        self._lock = RLock()  # held while one is opened or left
        self._known: dict[str, Tenancy] = {}
        self._lost: list[Tenancy] = []
        self._first_lost: dict[str, Tenancy] = {}  # by allocation
        self._asked: dict[str, str] = {}  # likewise: the name by which the program first asked for it, or ""

    # ---- for any thread ----

    def all(self) -> list[Tenancy]:
        """The tenancies in use, the oldest first."""
        return [one for one in list(self._known.values()) if not one.resting]

    def get(self, allocation: str) -> Tenancy | None:
        """The tenancy of an allocation; None if there is none."""
        return self._known.get(allocation)

    def with_mesh(self, mesh: int) -> Tenancy | None:
        """The tenancy that has a mesh of procs; None if there is none."""
        return next((one for one in self.all() if one.fleet.has(mesh)), None)

    def lose(self, tenancy: Tenancy) -> None:
        """Drop a tenancy whose allocation is gone; its resources are released later. On the driver."""
        if self._known.pop(tenancy.allocation, None) is not None:
            self._first_lost.setdefault(tenancy.allocation, tenancy)
            self._publish()
            self._lost.append(tenancy)
            self._ended(tenancy)

    def why_lost(self, allocation: str) -> str:
        """Why contact with an allocation was lost, as it was for the first time; empty if it never was."""
        lost = self._first_lost.get(allocation)
        return "" if lost is None else lost.over

    # ---- opening ----

    def default(self) -> Tenancy:
        """The oldest tenancy; if there is none, the allocation that the program was started on, or a new one.

        Raises:
            AllocationError: contact with an allocation that others have made was lost. The program is not moved to
                this machine in silence.
        """
        with self._lock:
            if (found := next(iter(self.all()), None)) is not None:
                return found
            if (lost := next((one for one in list(self._first_lost.values()) if one.outlives), None)) is not None:
                return self._open(open_attached(lost.directory, lost.name))
            return self._open(open_allocation())

    def here(self) -> Tenancy:
        """A tenancy whose hosts include this machine; an embedded one if there is none."""
        with self._lock:
            found = next((one for one in self.all() if one.rank >= 0 and one.rank not in one.given_up), None)
            return found or self.open(open_embedded)

    def named(self, name: str) -> Tenancy:
        """The allocation called *name*.

        Raises:
            AllocationError: there is none, or it has ended.
        """
        with self._lock:
            found = next((one for one in self.all() if one.name == name), None)
            return found or self.at(*open_named(name))

    def at(self, directory: Path, name: str = "") -> Tenancy:
        """The allocation in *directory*, which others have made."""
        with self._lock:
            found = next((one for one in self.all() if one.directory == directory), None)
            return found or self._open(open_attached(directory, name))

    def take_over(self, run: str, directory: Path, name: str = "") -> Tenancy:
        """The allocation in *directory*, with the run of another program; this one must not use it yet."""
        with self._lock:
            return self._open(open_held(directory, run, name))

    def join_parent(self, allocation: str) -> None:
        """Join the run of the program that started this one in *allocation*, if it has told of one."""
        with self._lock:
            found = None if allocation in self._known else find_parents_allocation(allocation)
            if found is not None:
                directory, run = found
                self._open(Opened(directory, read_config(directory), run, False, True, ExitStack()))

    def open(self, opener: Callable[[ExitStack], Path]) -> Tenancy:
        """Make an allocation that ends with this program, or when the program gives its hosts back."""
        with self._lock:
            resources = ExitStack()
            try:
                directory = opener(resources)
                return self._open(open_attached(directory, resources=resources, outlives=False))
            except BaseException:
                resources.close()
                raise

    def _open(self, opened: Opened) -> Tenancy:
        self._release_lost()
        for known in self._known.values():
            if known.directory == opened.directory:
                known.resting = False
                known.given_up.clear()
                return known
        try:
            tenancy = self._make(opened)
            lost, asked = (
                self._first_lost.get(tenancy.allocation),
                self._asked.setdefault(tenancy.allocation, opened.name),
            )
            self._known[tenancy.allocation] = tenancy
            try:
                self._begun(tenancy)
                tenancy.open()
                self._opened(tenancy)
                self._publish()
            except BaseException as error:
                self._known.pop(tenancy.allocation, None)
                self._ended(tenancy)
                if isinstance(error, AllocationError) and lost is not None:
                    raise AllocationError(tenancy.name, _advice(lost, asked)) from error
                raise
        except BaseException:
            opened.resources.close()
            raise
        return tenancy

    # ---- leaving ----

    def leave(self, tenancy: Tenancy, cause: str, *, ends: bool = False) -> None:
        """End a tenancy: its procs, its workers, and its allocation if that was made for this program.

        Args:
            ends: whether the allocation ends although others have made it.
        """
        with self._lock:
            if self._known.get(tenancy.allocation) is not tenancy:
                return
            if tenancy.outlives and not ends:
                tenancy.resting = True
                tenancy.stop_procs(cause)
                return
            tenancy.over = cause
            tenancy.end(cause)
            self._known.pop(tenancy.allocation, None)
            self._publish()
            self._ended(tenancy)
            tenancy.dismiss(tenancy.hosts)
            tenancy.resources.close()

    def release_all(self) -> None:
        """Release the resources of all tenancies, the program being over."""
        left, self._known = list(self._known.values()), {}
        self._publish()
        self._release_lost()
        for tenancy in left:
            self._release(tenancy)

    def _publish(self) -> None:
        publish_allocations((one.allocation, one.directory, one.run) for one in self._known.values())

    def _release_lost(self) -> None:
        while self._lost:
            self._release(self._lost.pop())

    def _release(self, tenancy: Tenancy) -> None:
        try:
            tenancy.resources.close()
        except Exception as error:  # noqa: BLE001 the others must be released, too
            _log.error("allocation %s could not be given back: %s", tenancy.name, summary_of(error))


def _advice(lost: Tenancy, asked: str) -> str:
    """What is left to do where contact with an allocation was lost, which the program had called *asked*."""
    does, end = "has ended this program's procs, and does not take the program back", ""
    if lost.keeps:
        does = "takes this program for lost"
        named = f"{lost.run!r}, {asked!r}" if asked else f"{lost.run!r}"  # there may be other allocations
        end = f"in the latter case, takeover({named}) gives the procs back that its run still holds; "
    listed = "'monarch-hpc status' lists the allocation if it lives"
    return f"contact with it was lost, so that it {does}: {ANEW}; {end}{listed}"
