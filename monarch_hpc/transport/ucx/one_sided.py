"""Gets and puts of a peer's memory through one UCX lane, without code of the peer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from monarch_hpc.core.errors import MemoryAccessError, PeerLost, TransportError
from monarch_hpc.transport.engine.engine import Engine
from monarch_hpc.transport.memory.key import Key
from monarch_hpc.transport.memory.moves import Moves
from monarch_hpc.transport.memory.transfer import Transfer
from monarch_hpc.transport.ucx.gpu import make_span

if TYPE_CHECKING:
    from monarch_hpc.transport.ucx import _ucx

__all__ = ["OneSided"]

_MAX_REMOTES = 8192
"""Unpacked memory keys cached per peer, some hundred bytes each: those of a few models, a key for each array."""


class OneSided:
    """The memory of one peer.

    Args:
        lane: of the extension.
        peer: the peer, for errors.
        error: returns why the lane has ended; None while it is open.
    """

    def __init__(self, engine: Engine, lane: _ucx.Lane, peer: str, error: Callable[[], TransportError | None]) -> None:
        from monarch_hpc.transport.ucx import _ucx

        self._engine = engine
        self._lane = lane
        self._peer = peer
        self._error = error
        self._failed: type[Exception] = _ucx.UcxError
        self._text: Callable[[int], str] = _ucx.status_text
        self._pieces = _ucx.Pieces
        # With the keys of their memories, which they follow from.
        self._lists: weakref.WeakKeyDictionary[Moves, tuple[Sequence[Key], _ucx.Pieces | str | None]]
        self._lists = weakref.WeakKeyDictionary()
        self._remotes: dict[tuple[bytes, int], _ucx.RemoteKey] = {}
        self._moving: set[Transfer] = set()
        self._abandoned = False

    def move(self, key: Key, offset: int, buffer: object, *, write: bool) -> Transfer | None:
        """Get or put memory of the peer; None where UCX does not reach it. From any thread.

        Raises:
            TypeError: *buffer* has no buffer protocol.
            BufferError: it is not contiguous, or is read-only.
        """
        address, rkey, part = key.remote(offset)
        if not rkey:
            return None
        span = make_span(buffer, not write)
        what = f"{'put' if write else 'get'} of {span.num_bytes} bytes at {offset}, {self._peer}"
        transfer = Transfer(self._engine, what)
        problem = key.problem(offset, span.num_bytes, write=write)
        if problem or not span.num_bytes:
            # Not raised: its traceback would keep this frame, and with it the buffer, in a cycle with the transfer.
            transfer.finish(MemoryAccessError(self._peer, problem) if problem else None)
            return transfer
        try:
            remote = self._remote((key.id, part), rkey)
            start = self._lane.put if write else self._lane.get
            self._watch(transfer, start(span, address, remote), flush=write)
        except self._failed as error:
            transfer.finish(self._lost(error))
        return transfer

    def move_all(self, moves: Moves, keys: Sequence[Key]) -> Transfer | None:
        """Begin a list in one call of the extension; otherwise as `move`. *keys* are of `Moves.identifiers`."""
        if not moves.on_host:
            return None
        writes = any(move.write for move in moves.moves)
        transfer = Transfer(self._engine, f"{moves}, {self._peer}")
        try:
            known, pieces = self._lists.get(moves, (None, None))
            if known != keys:
                pieces = self._prepare(moves, keys)
                self._lists[moves] = keys, pieces
            if isinstance(pieces, str):
                transfer.finish(MemoryAccessError(self._peer, pieces))
            elif pieces is not None:
                self._watch(transfer, self._lane.move_all(pieces), flush=writes)
        except self._failed as error:
            transfer.finish(self._lost(error))
            return transfer
        return None if pieces is None else transfer

    def _prepare(self, moves: Moves, keys: Sequence[Key]) -> _ucx.Pieces | str | None:
        """The list for the extension; why it is refused; or None if UCX does not reach a memory of it."""
        key_of = dict(zip(moves.identifiers, keys, strict=True))
        pieces = []
        for place, (identifier, offset, buffer, write) in enumerate(moves.moves):
            key = key_of[identifier]
            problem = key.problem(offset, buffer.nbytes, write=write)
            if problem:
                return moves.name(place, problem)
            address, rkey, part = key.remote(offset)
            if not rkey:
                return None
            if buffer.nbytes:
                pieces.append((make_span(buffer, not write), address, self._remote((key.id, part), rkey), write))
        return self._pieces(pieces)

    def _watch(self, transfer: Transfer, operation: _ucx.Operation, *, flush: bool) -> None:
        """Finish *transfer* when *operation* has ended, and a flush behind it if asked for."""
        # A put has arrived when a later flush is done.
        operations = [operation, self._lane.flush()] if flush else [operation]
        self._moving.add(transfer)

        def ended() -> None:
            if any(operation.status == 1 for operation in operations):
                return
            self._moving.discard(transfer)
            failed = next((operation.status for operation in operations if operation.status < 0), 0)
            transfer.finish(self._error() or PeerLost(self._peer, f"UCX: {self._text(failed)}") if failed else None)

        for one in operations:
            one.on_done = ended
        ended()  # the operations may be done already
        if self._abandoned:  # meanwhile, so that `abandon` may have missed this transfer
            transfer.finish(self._end())

    def _remote(self, name: tuple[bytes, int], rkey: bytes) -> _ucx.RemoteKey:
        remote = self._remotes.get(name)
        if remote is None:
            if len(self._remotes) >= _MAX_REMOTES:
                self._remotes.pop(next(iter(self._remotes), name), None)  # none if the lane was closed meanwhile
            remote = self._remotes[name] = self._lane.unpack(rkey)
        return remote

    def forget(self) -> None:
        """Drop what belongs to the open lane."""
        self._remotes.clear()
        self._lists.clear()

    def abandon(self) -> None:
        """Fail the transfers in flight: UCX has been closed, and nothing else will end them."""
        self._abandoned = True
        for transfer in list(self._moving):  # threads may add others
            transfer.finish(self._end())

    def _lost(self, error: Exception) -> TransportError:
        ended = self._error()
        return PeerLost(self._peer, str(error)) if ended is None else ended.for_later_calls(self._peer)

    def _end(self) -> TransportError:
        return self._error() or PeerLost(self._peer, "UCX was closed")
