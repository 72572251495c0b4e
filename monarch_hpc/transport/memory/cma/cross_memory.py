"""Copies memory between this process and others of the same user on this host, by itself: cross-memory attach.

The kernel copies in a system call of the process that reads or writes, with one copy and without the owner: while that
computes, holds its interpreter's lock, or is stopped. Containers, seccomp and Yama may forbid it, so it is tried first.
"""

from __future__ import annotations

import ctypes
import errno
import os
from _thread import allocate_lock
from array import array
from collections.abc import Callable, Sequence

from monarch_hpc.core.errors import MemoryAccessError, PeerLost, TransportError
from monarch_hpc.core.machine.buffer_address import address_of
from monarch_hpc.core.machine.place import read_place
from monarch_hpc.transport.engine.copiers import Copiers
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.cma.stamps import STAMP_BYTES, Stamp
from monarch_hpc.transport.memory.cma.steps import CopyStep, plan_steps
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.requests import OpenedMemory
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["AttachedMemory", "CrossMemory"]

_INLINE_BYTES = 64 * 1024
"""Up to this size the calling thread copies: in less time than it takes to wake another one."""

_libc = ctypes.CDLL(None, use_errno=True)  # its functions run without the interpreter's lock


def _function(name: str) -> Callable[..., int]:
    found = getattr(_libc, name, None)
    if found is None:  # a libc without it: the same as a kernel that forbids it
        return _refused
    found.restype = ctypes.c_ssize_t
    one_side = (ctypes.c_void_p, ctypes.c_ulong)
    found.argtypes = (ctypes.c_int, *one_side, *one_side, ctypes.c_ulong)
    function: Callable[..., int] = found
    return function


def _refused(*_arguments: object) -> int:
    ctypes.set_errno(errno.ENOSYS)
    return -1


_read = _function("process_vm_readv")
_write = _function("process_vm_writev")


class CrossMemory:
    """Cross-memory attach in this process.

    Attributes:
        place: equal for processes that may try it with each other; empty where it is not to be used.
        copiers: the threads that copy.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.place = b""
        self.copiers = Copiers()

    def use(self, order: Sequence[str]) -> None:
        """Copy memory of others, and let them copy memory of this process, if config key `fabric.order` says so."""
        if "cma" in order and order.index("cma") < order.index("tcp"):
            self.place = read_place().encode()

    def attach(self, opened: OpenedMemory, where: str, known: AttachedMemory | None) -> AttachedMemory | None:
        """The memory of the process that has sent *opened*; None if this one cannot copy what that describes.

        Args:
            where: that process, for errors.
            known: the result of an earlier call, which is returned again if it is of the same process.
        """
        if not opened.pid or not self.place:
            return None
        attached = known
        if attached is None or not attached.serves(opened):
            attached = AttachedMemory(self._engine, self.copiers, opened.pid, opened.stamp, where)
        return attached if attached.reaches(Key.parse(opened.key).ends(opened.address)) else None


class AttachedMemory:
    """The memory of one process of this host, which this process reads and writes by itself; for any thread.

    Args:
        stamp: the one that the process has made for this one.
        where: the process, for errors.
    """

    def __init__(self, engine: Engine, copiers: Copiers, pid: int, stamp: Stamp, where: str) -> None:
        self._engine = engine
        self._copiers = copiers
        self._pid = pid
        self._stamp = stamp
        self._where = where
        self._copies: set[_Copy] = set()
        self._error: TransportError | None = None

    def serves(self, opened: OpenedMemory) -> bool:
        """Whether *opened* comes from the same process."""
        return opened.pid == self._pid and opened.stamp == self._stamp

    def reaches(self, ends: Sequence[int]) -> bool:
        """Whether memory can be copied: the kernel allows it, and the bytes at its *ends* are ordinary memory."""
        into = bytearray(len(ends))
        here = address_of(memoryview(into))
        steps = plan_steps([(here + number, end, 1) for number, end in enumerate(ends)])
        return all(not self.copy(step, write=False) for step in steps) and not self._find_problem()

    def move(self, key: Key, address: int, offset: int, view: memoryview, *, write: bool) -> Transfer:
        """Read the memory with *key*, which lies at *address*, from *offset* on into *view*; or write *view* there."""
        what = f"{'put' if write else 'get'} of {view.nbytes} bytes at {offset}, {self._where}"
        problem = key.problem(offset, view.nbytes, write=write)
        if problem:
            return self._refuse(what, problem)
        steps = plan_steps([(address_of(view), key.locate(offset, address), view.nbytes)])
        return self._begin(what, [(step, write) for step in steps], view)

    def move_all(self, moves: Moves, places: list[tuple[Key, int]]) -> Transfer:
        """Begin all *moves*; *places* are key and address of each of its memories."""
        what = f"{moves}, {self._where}"
        known, steps = moves.plan
        if known != places:
            steps = _plan(moves, places)
            moves.plan = places, steps
        return self._refuse(what, steps) if isinstance(steps, str) else self._begin(what, steps, moves)

    def _refuse(self, what: str, problem: str) -> Transfer:
        refused = Transfer(self._engine, what)
        refused.finish(MemoryAccessError(self._where, problem))
        return refused

    def _begin(self, what: str, steps: list[tuple[CopyStep, bool]], kept: object) -> Transfer:
        """Copy *steps*, each with whether it writes to the other process; *kept* is the local memory."""
        transfer = Transfer(self._engine, what)
        if len(steps) == 1 and steps[0][0].num_bytes <= _INLINE_BYTES:
            transfer.finish(self._error or self.failure(self.copy(steps[0][0], write=steps[0][1])))
        elif not steps:
            transfer.finish()
        else:
            _Copy(self, transfer, steps, kept)
        return transfer

    def copy(self, step: CopyStep, *, write: bool) -> int:
        """Copy a step; return 0, or an error number."""
        seen = array("B", bytes(STAMP_BYTES))
        stamp = array("Q", (self._stamp.address, STAMP_BYTES))
        check = array("Q", (seen.buffer_info()[0], STAMP_BYTES))
        if write:
            # The kernel cannot check while it writes. Nothing but the ends of both processes comes in between.
            problem = self._call(_read, check, stamp, STAMP_BYTES) or self._compare(seen)
            return problem or self._call(_write, step.local, step.remote, step.num_bytes)
        # The stamp comes last: if it is valid then, all that was copied before it was, too.
        problem = self._call(_read, step.local + check, step.remote + stamp, step.num_bytes + STAMP_BYTES)
        return problem or self._compare(seen)

    def _call(self, function: Callable[..., int], local: array[int], remote: array[int], num_bytes: int) -> int:
        here, there = local.buffer_info(), remote.buffer_info()
        num_copied = function(self._pid, here[0], here[1] // 2, there[0], there[1] // 2, 0)
        if num_copied == num_bytes:
            return 0
        return ctypes.get_errno() if num_copied < 0 else errno.EFAULT

    def _compare(self, seen: array[int]) -> int:
        return 0 if seen.tobytes() == self._stamp.value else errno.ESRCH

    def _find_problem(self) -> int:
        """Why the process cannot be reached; 0 if it can, as far as its stamp shows."""
        return self.copy(CopyStep(array("Q"), array("Q"), 0), write=False)

    def failure(self, problem: int) -> TransportError | None:
        """The error of a copy with an error number; None if that is 0."""
        if not problem:
            return None
        if problem == errno.EFAULT and not self._find_problem():
            return MemoryAccessError(self._where, "a part of the memory is not mapped there, or here, any more")
        return PeerLost(self._where, f"its memory cannot be reached any more: {os.strerror(problem)}")

    def started(self, copy: _Copy, num_steps: int) -> TransportError | None:
        """Let the threads work on *copy*; return why they cannot."""
        self._copies.add(copy)
        if self._error is None and not self._copiers.add(copy, num_steps):
            return PeerLost(self._where, "this process is closing")
        return self._error

    def ended(self, copy: _Copy) -> None:
        """Forget *copy*."""
        self._copies.discard(copy)
        self._copiers.remove(copy)

    def close(self, error: TransportError) -> None:
        """End all copies with *error*, and refuse later ones: the channel has ended."""
        self._error = error
        for copy in list(self._copies):
            copy.stop(error)


def _plan(moves: Moves, places: Sequence[tuple[Key, int]]) -> list[tuple[CopyStep, bool]] | str:
    """The copies that make up *moves*, each with whether it writes; or why they are refused."""
    keys = dict(zip(moves.identifiers, places, strict=True))
    spans: dict[bool, list[tuple[int, int, int]]] = {False: [], True: []}
    for place, (identifier, offset, view, write) in enumerate(moves.moves):
        key, address = keys[identifier]
        problem = key.problem(offset, view.nbytes, write=write)
        if problem:
            return moves.name(place, problem)
        spans[write].append((address_of(view), key.locate(offset, address), view.nbytes))
    return [(step, write) for write, some in spans.items() for step in plan_steps(some)]


class _Copy:
    """A transfer that threads copy, see `transport.engine.copiers.Task`."""

    def __init__(
        self, attachment: AttachedMemory, transfer: Transfer, steps: list[tuple[CopyStep, bool]], kept: object
    ) -> None:
        self._attachment = attachment
        self._transfer = transfer
        self._steps = steps
        self._kept = kept
        self._lock = allocate_lock()
        self._next = 0
        self._num_working = 0
        self._error: TransportError | None = None
        transfer.stop_by(self.stop)
        error = attachment.started(self, len(steps))
        if error is not None:
            self.stop(error)

    def take(self) -> int:
        """See `transport.engine.copiers.Task`."""
        with self._lock:
            step = self._next
            if step == len(self._steps):
                return -1
            self._next += 1
            self._num_working += 1
            return step

    def do(self, step: int) -> None:
        """See `transport.engine.copiers.Task`."""
        spans, write = self._steps[step]
        problem = self._attachment.copy(spans, write=write)
        self._leave(self._attachment.failure(problem), 1)

    def stop(self, error: TransportError) -> None:
        """End it with *error*, once the steps that are in progress have ended."""
        self._leave(error, 0)

    def _leave(self, error: TransportError | None, num_left: int) -> None:
        with self._lock:
            self._num_working -= num_left
            if error is not None:
                self._error = self._error or error
                self._next = len(self._steps)
            over = not self._num_working and self._next == len(self._steps)
        if over:
            self._attachment.ended(self)
            self._transfer.finish(self._error)
