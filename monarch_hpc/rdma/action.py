"""Several transfers as one: begun together, done when all are, and submitted as often as wanted.

The transport gets those with one owner as one list, which it prepares at the first submission.
"""

from __future__ import annotations

import bisect
from _thread import allocate_lock
from collections.abc import Callable
from typing import Self

from monarch_hpc.actor.future import Future
from monarch_hpc.actor.messages.proc_ref import ProcRef
from monarch_hpc.actor.runtime.runtime import Runtime, current_runtime
from monarch_hpc.core.arguments import check_instance, check_number, check_time_limit
from monarch_hpc.rdma.buffer import DEFAULT_TIMEOUT_S, Moving, RDMABuffer
from monarch_hpc.rdma.devices import settle
from monarch_hpc.rdma.local import Local
from monarch_hpc.rdma.remote_use import MoveUse, record_waits
from monarch_hpc.transport.memory.moves import Move, Moves
from monarch_hpc.transport.memory.requests import WORD_BYTES

__all__ = ["RDMAAction"]

_EXAMPLE = "a buffer, RDMABuffer(array)"
_lock = allocate_lock()  # for all actions, which hold it for a moment

_Begin = Callable[[Runtime, float | None], Future[None]]


class RDMAAction:
    """Operations on buffers, in no particular order among themselves."""

    def __init__(self) -> None:
        self._moves: dict[ProcRef, list[Move]] = {}
        self._prepared: dict[ProcRef, Moves] | None = None  # None after each change
        self._changes: list[_Begin] = []
        self._targets: list[tuple[int, int]] = []  # addresses of local memory that is written: first, and behind last

    def read_remote(self, dst: object, src: RDMABuffer) -> Self:
        """Add a read of all of *src* into *dst*; see `RDMABuffer.read_into`.

        Raises:
            TypeError, ValueError: *dst* cannot take it, or overlaps with the target of another operation.
        """
        check_instance("src", src, RDMABuffer, _EXAMPLE)
        moving = src.reading(dst)
        self._claim(moving.local, moving.num_bytes)
        return self._add(moving)

    def write_remote(self, dst: RDMABuffer, src: object) -> Self:
        """Add a write of all of *src* to *dst*; see `RDMABuffer.write_from`.

        Raises:
            TypeError, ValueError: *src* does not fit, or *dst* can only be read.
        """
        check_instance("dst", dst, RDMABuffer, _EXAMPLE)
        return self._add(dst.writing(src))

    def _add(self, moving: Moving) -> Self:
        self._moves.setdefault(moving.proc, []).append(moving.move)
        self._prepared = None
        return self

    def fetch_add(self, src: RDMABuffer, dst: object, add: int) -> Self:
        """Add *add* to the 64-bit number at the beginning of *src*, modulo 2**64, and read what it was into *dst*.

        Atomic among all operations of this kind, which the owner's engine does, but not among other writes.

        Raises:
            TypeError, ValueError: *src* has fewer than 8 bytes or can only be read, or *dst* cannot take the number.
        """
        return self._change(src, dst, _word("add", add), None)

    def compare_and_swap(self, src: RDMABuffer, dst: object, compare: int, swap: int) -> Self:
        """Replace the 64-bit number at the beginning of *src* by *swap* if it is *compare*; else as `fetch_add`."""
        return self._change(src, dst, _word("swap", swap), _word("compare", compare))

    def _change(self, src: RDMABuffer, dst: object, value: bytes, compare: bytes | None) -> Self:
        check_instance("src", src, RDMABuffer, _EXAMPLE)
        changing = src.changing(dst, value, compare)
        self._claim(changing.local, changing.local.num_bytes)
        self._changes.append(changing.begin)
        return self

    def _claim(self, local: Local, num_bytes: int) -> None:
        first = local.address
        place = bisect.bisect(self._targets, (first, 0))
        around = self._targets[max(place - 1, 0) : place + 1]
        if any(first < other_end and other < first + num_bytes for other, other_end in around):
            raise ValueError("dst overlaps with the target of another operation of this action")
        self._targets.insert(place, (first, first + num_bytes))

    def submit(self, *, timeout: float | None = DEFAULT_TIMEOUT_S) -> Future[None]:
        """Begin all operations.

        Args:
            timeout: seconds for each; None for no limit.

        Returns:
            A future that is done when all have ended; it fails with the first error.
        """
        runtime = current_runtime()
        limit_s = check_time_limit("timeout", timeout)
        if self._prepared is None:
            self._prepared = {proc: Moves(moves) for proc, moves in self._moves.items()}
        for moves in self._prepared.values():
            if not moves.on_host:
                for move in moves.moves:
                    settle(move.buffer)
        parts = [_move(runtime, limit_s, proc, moves) for proc, moves in self._prepared.items()]
        return _All(runtime, [*parts, *(begin(runtime, limit_s) for begin in self._changes)])


def _move(runtime: Runtime, limit_s: float | None, proc: ProcRef, moves: Moves) -> Future[None]:
    first = moves.moves[0]
    use = MoveUse(
        runtime,
        proc,
        f"{moves} with {proc.host}",
        limit_s,
        lambda memory: memory.move_all(moves),
        first.identifier,
        moves.num_bytes,
        write=first.write,
    )
    use.begin()
    return use


class _All(Future[None]):
    """Done when all *parts* have ended."""

    def __init__(self, runtime: Runtime, parts: list[Future[None]]) -> None:
        super().__init__(runtime.engine, lambda: f"an action of {len(parts)} operations")
        record_waits(self, runtime, "transfers of an RDMAAction")
        self._parts = parts
        self._left = len(parts)
        if not parts:
            self.set_result(None)
        for part in parts:
            part.add_done_callback(self._ended)

    def _ended(self, _part: Future[None]) -> None:
        with _lock:
            self._left -= 1
            last = not self._left
        if not last:
            return
        error = next((part.exception() for part in self._parts if not part.cancelled() and part.exception()), None)
        if error is not None:
            self.set_exception(error)
        elif any(part.cancelled() for part in self._parts):
            super().cancel()
        else:
            self.set_result(None)

    def cancel(self) -> bool:
        """Stop all operations; return whether all have ended. If not, it ends as soon as they have."""
        for part in self._parts:
            part.cancel()
        return self.cancelled()


def _word(what: str, number: int) -> bytes:
    modulo = int(2 ** (8 * WORD_BYTES))
    return (check_number(what, number) % modulo).to_bytes(WORD_BYTES, "little")
