"""Lists of transfers with the memory of one process, which are begun together and end as one."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from monarch_hpc.core.errors import TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.cma.steps import CopyStep
from monarch_hpc.transport.memory.key import Key, num_bytes_of
from monarch_hpc.transport.memory.transfer import Transfer

__all__ = ["Move", "Mover", "Moves", "join_transfers"]


_T = TypeVar("_T")


class Move(NamedTuple):
    """One transfer: *buffer* is filled from *offset* of the memory on, or is written there if *write*."""

    identifier: bytes
    offset: int
    buffer: Any
    write: bool


class Mover(Protocol):
    """What carries transfers without frames."""

    def move(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        """See `transport.api.Lane.move`."""
        ...

    def move_all(self, moves: Moves, keys: Sequence[Key]) -> Transfer | None:
        """See `transport.api.Lane.move_all`."""
        ...


class Moves:
    """Transfers with memories of one process, which can begin any number of times.

    Args:
        numbers: of a part of a larger list: the place in that of each transfer, and of all of them.

    Attributes:
        identifiers: the memories, each once.
        num_bytes: of all of them.
        on_host: whether the local memory is that of this host, and not of a device.
        plan: keys and addresses of the memories, and the copies by this process that follow from them, each with
            whether it writes, or why there are none; made at the first use, for later ones.
    """

    def __init__(self, moves: Sequence[Move], numbers: tuple[Sequence[int], int] | None = None) -> None:
        self.moves = tuple(moves)
        self._numbers = numbers
        self._parts: tuple[dict[bytes, object], dict[Any, Moves]] = {}, {}
        self.identifiers = tuple(dict.fromkeys(move.identifier for move in moves))
        self.num_bytes = sum(map(num_bytes_of, (move.buffer for move in moves)))
        self.on_host = all(isinstance(move.buffer, memoryview) for move in moves)
        self.plan: tuple[list[tuple[Key, int]], list[tuple[CopyStep, bool]] | str] = [], []

    def __str__(self) -> str:
        return f"{len(self.moves)} transfers"

    def name(self, place: int, problem: str) -> str:
        """A problem of the transfer at *place*, in words that say which one it is, if there are several."""
        numbers, num = (range(len(self.moves)), len(self.moves)) if self._numbers is None else self._numbers
        return problem if num == 1 else f"piece {numbers[place]} of {num}: {problem}"

    def place_of(self, identifier: bytes) -> int:
        """Place of the first transfer with a memory, of which there is one."""
        return next(place for place, move in enumerate(self.moves) if move.identifier == identifier)

    def parted(self, parts: dict[bytes, _T]) -> dict[_T, Moves]:
        """Distribute the transfers over parts; *parts* has that of each memory. Kept for the next use."""
        known, found = self._parts
        if known != parts:
            places: dict[_T, list[int]] = {}
            for place, move in enumerate(self.moves):
                places.setdefault(parts[move.identifier], []).append(place)
            found = {
                part: Moves([self.moves[place] for place in some], (some, len(self.moves)))
                for part, some in places.items()
            }
            self._parts = dict(parts), found
        return found


def join_transfers(engine: Engine, what: str, transfers: Sequence[Transfer]) -> Transfer:
    """A transfer that ends when all *transfers* have, with the first error; to stop it stops all."""
    joint = Transfer(engine, what)
    lock = allocate_lock()
    left = [1 + len(transfers)]

    def ended(_transfer: Transfer | None = None) -> None:
        with lock:
            left[0] -= 1
            last = not left[0]
        if last:
            joint.finish(next((transfer.error for transfer in transfers if transfer.error is not None), None))

    def stop(error: TransportError) -> None:
        for transfer in transfers:
            transfer.stop(error)
        if all(transfer.done for transfer in transfers):
            joint.finish(error)

    joint.stop_by(stop)
    for transfer in transfers:
        if transfer.done:
            ended()
        else:
            transfer.on_done(ended)
    ended()
    return joint
